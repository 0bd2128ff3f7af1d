"""The renderer of a model: by the fingerprint of its template, else by its name."""

from __future__ import annotations

from rollwright.telemetry import Metrics
from rollwright.wire import UsageError

from .contract import Renderer, RenderOptions
from .engine import TokenEngine
from .families import by_name, by_template
from .generic import GenericRenderer
from .render import TableRenderer
from .source import ModelTokens


def renderer_for(
    engine: TokenEngine,
    *,
    template: str = "",
    model: str = "",
    options: RenderOptions | None = None,
    metrics: Metrics | None = None,
    tokens: ModelTokens | None = None,
) -> Renderer:
    """A template that is known decides, whatever the model is called: names are copied, templates are what the model
    was trained with. A template that is not known is never rendered by a table that merely sounds like it: it renders
    itself, with the control strings in `tokens`."""
    if template:
        family = by_template(template)
        if family is None:
            return GenericRenderer(template, engine, options, metrics, tokens)
        return TableRenderer(family, engine, options, metrics)
    family = by_name(model)
    if family is None:
        raise UsageError(f"no family is known by the name {model!r}; give the model's chat template")
    return TableRenderer(family, engine, options, metrics)
