"""`rollwright VERB ...`: finds the verb, and is the border where every error becomes one sentence and an exit code.

0 is fine, 1 is failed work, 2 is a wrong command. A verb's code is imported when the verb is asked for.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence

from rollwright import __version__

from .talk import Talk, TalkHandler, open_closed_streams, result

VERBS = {
    "eval": "evaluate a model on a taskset",
    "orchestrate": "roll out groups and write one batch of samples per step",
    "serve": "serve an environment with worker processes behind a broker",
    "join": "work for a running server as one more worker",
    "keys": "make keys for a server and its workers",
    "ctl": "give orders to a running server",
    "doctor": "say what works on this machine",
}


def main(argv: Sequence[str] | None = None) -> None:
    """The console script."""
    open_closed_streams()
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: Sequence[str]) -> int:
    talk = Talk()
    handler = TalkHandler(talk)
    logging.getLogger().addHandler(handler)
    try:
        return _run_verb(argv, talk)
    finally:
        logging.getLogger().removeHandler(handler)


def _run_verb(argv: Sequence[str], talk: Talk) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        result(usage())
        return 0
    if argv[0] in ("-V", "--version", "version"):
        result(f"rollwright {__version__}")
        return 0
    verb, *rest = argv
    if verb not in VERBS:
        from rollwright.wire.hints import hint

        talk.say(f"Error: rollwright has no verb {verb!r}; {hint(verb, VERBS)}")
        return 2
    return _guarded(verb, rest, talk)


def _guarded(verb: str, argv: Sequence[str], talk: Talk) -> int:
    debug = "--debug" in argv or os.environ.get("ROLLWRIGHT_DEBUG", "") not in ("", "0")
    try:
        code: int = importlib.import_module(f"rollwright.cli.{verb}").main(argv, talk)
        return code
    except KeyboardInterrupt:
        talk.say("Interrupted.")
        return 1
    except Exception as error:  # The border: a person sees a sentence, never a traceback they did not ask for.
        if debug:
            traceback.print_exc()
        return _told(error, talk)


def _told(error: Exception, talk: Talk) -> int:
    # Imported here, since `rollwright --help` needs none of it.
    from rollwright.wire import RollwrightError, UsageError

    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, RollwrightError):
        talk.say(f"Error: {error}")
        return 2 if isinstance(error, UsageError) else 1
    talk.say(f"Error: {type(error).__name__}: {error}. This is a bug; its details are in {_written(error)}")
    return 1


def _written(error: Exception) -> str:
    try:
        descriptor, path = tempfile.mkstemp(prefix="rollwright-", suffix=".txt")
        with open(descriptor, "w") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError as refused:
        return f"nothing: they could not be written ({refused.strerror}); run again with --debug"
    return path


def usage() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {does}" for verb, does in VERBS.items())
    return (
        f"rollwright {__version__}: rollouts for reinforcement learning on language models\n\n"
        f"usage: rollwright VERB [...]\n\n{verbs}\n\n"
        "Begin with:  rollwright eval gsm8k\n"
        "All settings of a verb:  rollwright VERB --help"
    )
