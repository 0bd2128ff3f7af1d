"""The program with verbs: eval, orchestrate, doctor. Words for people; imported by nobody."""
