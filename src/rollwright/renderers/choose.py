"""The renderer of a model: by the fingerprint of its template, else by its name."""

from __future__ import annotations

from rollwright.telemetry import Metrics
from rollwright.wire import UsageError

from .contract import Renderer, RenderOptions
from .engine import TokenEngine
from .families import by_name, by_template
from .render import TableRenderer


def renderer_for(
    engine: TokenEngine,
    *,
    template: str = "",
    model: str = "",
    options: RenderOptions | None = None,
    metrics: Metrics | None = None,
) -> Renderer:
    """A template that is known decides, whatever the model is called: names are copied, templates are what the model
    was trained with. A template that is not known is never rendered by a table that merely sounds like it."""
    if template:
        family = by_template(template)
        if family is None:
            raise UsageError(
                f"the chat template of {model or 'this model'} is not one that a family was proven against"
            )
        return TableRenderer(family, engine, options, metrics)
    family = by_name(model)
    if family is None:
        raise UsageError(f"no family is known by the name {model!r}; give the model's chat template")
    return TableRenderer(family, engine, options, metrics)
