"""From settings to a tokens engine, and from the command line to settings."""

import json

import pytest

import tiny
from rollwright.engines import EngineConfig, TokensConfig, open_engine
from rollwright.engines.config import RelayConfig
from rollwright.engines.scripted import ScriptedConfig, ScriptedServer, scripted_process
from rollwright.engines.tokens.opening import make_pool
from rollwright.renderers.source import read_template
from rollwright.wire import ModelCall, Sampling, UsageError, assistant, user


@pytest.fixture
def model_files(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(tiny.VOCABULARY)
    return tmp_path


async def test_settings_open_an_engine(model_files):
    scripted = ScriptedConfig(tokens=True, tokenizer=str(model_files), context_tokens=4096)
    async with ScriptedServer(scripted, lambda call, rng: assistant("the abc")) as server:
        tokens = TokensConfig(tokenizer=str(model_files), family="qwen3", pool_size=2)
        config = EngineConfig(kind="tokens", tokens=tokens, relay=RelayConfig(base_url=server.base_url))
        async with open_engine(config, "m") as engine:
            await engine.probe()
            reply = await engine.complete(ModelCall("", (user("hi"),)))
            assert reply.message.text == "the abc"
            assert reply.tokens is not None


async def test_the_scripted_process_serves_ids_too(model_files):
    scripted = ScriptedConfig(policy="echo", tokens=True, tokenizer=str(model_files), context_tokens=4096)
    async with scripted_process(scripted) as server:
        tokens = TokensConfig(tokenizer=str(model_files), family="qwen3", pool_size=1, endpoint="completions")
        config = EngineConfig(kind="tokens", tokens=tokens, relay=RelayConfig(base_url=server.base_url))
        async with open_engine(config, "m") as engine:
            reply = await engine.complete(ModelCall("", (user("hi"),), sampling=Sampling(max_tokens=200)))
    assert "hi" in reply.message.text + reply.message.reasoning


def test_the_family_is_found_by_the_name_of_the_model(model_files):
    pool = make_pool(TokensConfig(tokenizer=str(model_files), pool_size=1), "Qwen/Qwen3-8B")
    assert pool.renderer.family == "qwen3"
    pool.close()


def test_a_model_that_nobody_knows_is_not_rendered_by_a_guess(model_files):
    with pytest.raises(UsageError):
        make_pool(TokensConfig(tokenizer=str(model_files), pool_size=1), "nobody/knows-7b")


def test_keeping_the_thinking_is_a_setting(model_files):
    for keep, history in ((False, "template"), (True, "keep")):
        config = TokensConfig(tokenizer=str(model_files), family="qwen3", pool_size=1, keep_thinking=keep)
        pool = make_pool(config, "m")
        assert pool.renderer.options.history == history
        pool.close()


def test_the_tokenizer_is_needed():
    with pytest.raises(UsageError, match=r"engine\.tokens\.tokenizer"):
        make_pool(TokensConfig(), "m")


@pytest.mark.parametrize("settings", [{"pool_size": 0}, {"context_tokens": 0}, {"remember_mb": -1.0}])
def test_amounts_must_be_more_than_nothing(settings):
    with pytest.raises(UsageError, match=f"engine.tokens.{next(iter(settings))} must be more than 0"):
        TokensConfig(**settings)


# Templates beside a tokenizer.


def test_a_template_is_found_in_either_file(model_files):
    assert read_template(model_files) == ""
    config = model_files / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": "one", "other": 1}))
    assert read_template(model_files / "tokenizer.json") == "one"
    config.write_text(
        json.dumps({"chat_template": [{"name": "x", "template": "no"}, {"name": "default", "template": "two"}]})
    )
    assert read_template(model_files) == "two"
    config.write_text(json.dumps({"chat_template": None}))
    assert read_template(model_files) == ""
    (model_files / "chat_template.jinja").write_text("three")
    assert read_template(model_files) == "three"


@pytest.mark.parametrize("text", ["no json", '{"chat_template": 3}'])
def test_a_template_that_cannot_be_read_is_a_usage_error(model_files, text):
    (model_files / "tokenizer_config.json").write_text(text)
    with pytest.raises(UsageError, match="cannot be read"):
        read_template(model_files)
