"""Keys: stripped and checked where they are read, refused by the variable's name, and in no text however escaped."""

from __future__ import annotations

import base64
import html
import json
import re
import traceback
from urllib.parse import quote

import pytest

from analysis.__main__ import main as analysis
from experiments.__main__ import main as experiments
from policy.model import find_model
from simulator.llm.client import check_endpoints
from simulator.llm.config import EndpointConfig, hide, read_key
from tests.fake_endpoint import FakeEndpoint, serving, status

KEY = "sk-0123<&>'ab\\cd+/=%~9876"


@pytest.mark.parametrize("margins", ["{}\r", "{}\n", "{}\r\n", " {}\t", "\ufeff{}\r\n", "\n\ufeff {}\u200b", "{}\u00a0"])
def test_what_a_file_left_around_a_key_is_no_part_of_it(monkeypatch, margins):
    monkeypatch.setenv("MADE_UP_KEY", margins.format(KEY))
    assert read_key("MADE_UP_KEY") == KEY


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("sk-made\nup-1234", "holds a line end or another control character"),
        ("sk-made\rup-1234", "holds a line end or another control character"),
        ("sk-made\tup-1234", "holds a line end or another control character"),
        ("sk-made\x1bup-1234", "holds a line end or another control character"),
        ("sk-made\x7fup-1234", "holds a line end or another control character"),
        ("sk-madé-1234", "holds a character that is not ASCII"),
        ("sk-made\u2011up-1234", "holds a character that is not ASCII"),
        ("sk-made\udcff-1234", "holds a character that is not ASCII"),
        ("Bearer sk-made-1234", "holds a space"),
        ('"sk-made-1234"', "holds quotation marks around the key"),
        (" \r\n", "holds nothing but whitespace"),
    ],
)
def test_what_is_no_key_is_refused_by_the_name_of_its_variable(monkeypatch, value, why):
    monkeypatch.setenv("MADE_UP_KEY", value)
    complaint = f"simulator.api_key_env must name a variable with a key, got 'MADE_UP_KEY', which {why}; the key is not shown"
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}$") as found:
        check_endpoints(EndpointConfig(model="m", api_key_env="MADE_UP_KEY"))
    said = "".join(traceback.format_exception(found.value))
    assert "sk-ma" not in said and "1234" not in said


def test_a_key_in_the_place_of_a_variables_name_is_not_repeated():
    with pytest.raises(ValueError, match="got something else") as found:
        read_key("gsk_a1b2c3d4e5")
    assert "gsk_a" not in str(found.value)


def forms_of(key: str) -> list[str]:
    """How texts may write a key."""
    header = f"Bearer {key}"
    return [
        *(key, repr(key), repr(key.encode()), repr(repr(key)), json.dumps(key), json.dumps(json.dumps(key)), html.escape(key)),
        *(quote(key), quote(key, safe=""), quote(quote(key, safe="")), "".join(f"%{ord(letter):02x}" for letter in key)),
        *("".join(f"\\x{ord(letter):02x}" for letter in key), "".join(f"&#{ord(letter)};" for letter in key), key.upper()),
        *(base64.b64encode((" " * n + key).encode()).decode() for n in range(3)),
        *(base64.b64encode(header.encode()).decode(), base64.urlsafe_b64encode(key.encode()).decode(), key.encode().hex()),
        *(key[:14], key[5:], f"{key[:3]}*****{key[-4:]}", f"{key[:6]}...", f"...{key[-4:]}"),
    ]


@pytest.mark.parametrize("form", forms_of(KEY))
def test_a_key_is_in_no_text_however_it_is_written(form):
    said = hide(f"Illegal header value {form}, so no answer", KEY)
    assert not any(KEY[start : start + 8] in plain for plain in (said, said.replace("\\", "")) for start in range(len(KEY) - 7))
    assert KEY[-4:] not in said and "sk-" not in said.lower() and "9876" not in said
    encoded = [base64.b64encode((" " * n + KEY).encode()).decode()[8:20] for n in range(3)]
    assert not any(part in said for part in encoded)


def test_words_without_the_key_stay_as_they_are():
    words = "HTTP 500 the model m is not loaded yet... wait 5 s (**never** retried), simulator.api_key_env is set"
    assert hide(words, KEY) == hide(words, "") == words
    assert hide("none of the needs", "EMPTY") == "none of the needs"


def test_a_key_that_the_server_masks_is_not_shown_in_part(monkeypatch):
    monkeypatch.setenv("MADE_UP_KEY", "sk-proj-abcdefgh-wxyz\r\n")
    said = "Incorrect API key provided: sk-pr***************wxyz. You can find your key elsewhere."
    with serving(FakeEndpoint(always=status(401, said))) as server, pytest.raises(ValueError, match="HTTP 401") as found:
        check_endpoints(EndpointConfig(urls=[server.url], model="m", api_key_env="MADE_UP_KEY", cache="off"))
    assert "provided: ***. You" in str(found.value)


def test_the_key_is_sent_without_what_stood_around_it(monkeypatch):
    monkeypatch.setenv("MADE_UP_KEY", "sk-made-1234\r\n")
    with serving(FakeEndpoint(key="sk-made-1234")) as server:
        check_endpoints(EndpointConfig(urls=[server.url], model="m", api_key_env="MADE_UP_KEY", cache="off"))
    assert set(server.keys) == {"sk-made-1234"}


COMMANDS = {
    "training": "experiments smoke simulator.kind=llm simulator.model=m simulator.api_key_env=MADE_UP_KEY",
    "agent": "experiments evaluate http://127.0.0.1:9/v1 --model m --key-env MADE_UP_KEY",
    "agent's judge": "experiments evaluate L3 --dry-run --user llm --user-model m --judge-model m --judge-key-env MADE_UP_KEY",
    "user": "experiments evaluate L3 --user llm --user-url http://127.0.0.1:9/v1 --user-model m --user-key-env MADE_UP_KEY",
    "persona": "analysis persona --play 1 --judge-url http://127.0.0.1:9/v1 --judge-model m --judge-key-env MADE_UP_KEY",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_that_takes_a_key_refuses_it_by_its_variable(command, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("MADE_UP_KEY", "sk-made\r\nup-1234")
    monkeypatch.chdir(tmp_path)
    module, *words = command.split()
    code = {"experiments": experiments, "analysis": analysis}[module](words)
    said = "".join(capsys.readouterr())
    assert code == (0 if "--dry-run" in words else 2) and "must name a variable with a key, got 'MADE_UP_KEY'" in said
    assert "sk-made" not in said and "up-1234" not in said


@pytest.mark.parametrize("variable", ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"])
@pytest.mark.parametrize("value", ["hf_made\nup1234", "hf_madé1234", "\ufeffhf_made1234"])
def test_the_hubs_token_is_looked_at_before_it_is_sent(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=f"{variable} must hold a token, got one that holds a") as found:
        find_model("made-up/model")
    assert "hf_" not in "".join(traceback.format_exception(found.value))
