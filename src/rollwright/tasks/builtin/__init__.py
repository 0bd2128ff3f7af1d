"""The tasksets that come with Rollwright. Each is found by its entry point; none is imported before it is asked for."""
