# /// script
# requires-python = ">=3.11"
# dependencies = ["mini-swe-agent==2.4.6", "litellm==1.98.1"]
# ///
# mypy: ignore-errors
# Runs under the interpreter of a box, which may be older than ours: plain Python, unannotated.
"""mini-swe-agent without its terminal: the package's own agent, prompts and shell, with the model behind our door.

A JSON object on stdin says what to do: prompt, model, step_limit, command_timeout_s. The address and the key come in
the environment and are taken out of it, so that no command of the agent sees them. The last line of stdout tells how it
ended.
"""

import json
import os
import sys

ENDINGS = {"Submitted": "finished", "RepeatedFormatError": "finished", "LimitsExceeded": "turns"}
"""What the agent calls its ends, and what they are to us: one that gives up has finished, and is scored."""


def main():
    told = json.load(sys.stdin)
    url, key = os.environ.pop("ROLLWRIGHT_URL"), os.environ.pop("ROLLWRIGHT_KEY")
    # Imported here: the package makes a directory in HOME when it is imported, and has to find that of its box.
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import builtin_config_dir, get_config_from_spec
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    config = get_config_from_spec(str(builtin_config_dir / "mini.yaml"))
    agent = {name: config["agent"][name] for name in ("system_template", "instance_template")}
    kwargs = {**(config["model"].pop("model_kwargs", None) or {}), "api_base": f"{url}/v1", "api_key": key}
    model = LitellmModel(
        **{**config["model"], "model_name": f"openai/{told['model']}", "model_kwargs": kwargs},
        cost_tracking="ignore_errors",
    )
    shell = LocalEnvironment(**{**config["environment"], "timeout": told["command_timeout_s"]})
    ended = DefaultAgent(model, shell, **agent, step_limit=told["step_limit"], cost_limit=0.0).run(told["prompt"])
    status = ended.get("exit_status", "")
    print(json.dumps({"ended": ENDINGS.get(status, status), "why": ended.get("submission", "")}))


if __name__ == "__main__":
    main()
