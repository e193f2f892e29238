"""What looks the same reads the same."""

from __future__ import annotations

import pytest

from simulator.listener import Register, read
from simulator.scenario import Split
from simulator.text import as_seen
from simulator.world import load_bank

PLAIN = "I can hear how hurt you are, and this is not your fault."


@pytest.mark.parametrize(
    "disguised",
    [
        "I can h\u0435ar h\u043ew hurt y\u043eu \u0430re, and this is n\u043et your f\u0430ult.",
        "I c\u200ban he\u200dar how hu\u00adrt you ar\ufeffe, and th\u2060is is not your fault.",
        "I c\u0301an hea\u0308r how hur\u0300t you are, and this is not your fault.",
        "Ｉ ｃａｎ ｈｅａｒ ｈｏｗ ｈｕｒｔ ｙｏｕ ａｒｅ， ａｎｄ ｔｈｉｓ ｉｓ ｎｏｔ ｙｏｕｒ ｆａｕｌｔ．",
        "\U0001d408 \U0001d41c\U0001d41a\U0001d427 hear how hurt you are, and this is not your fault.",
    ],
)
@pytest.mark.parametrize("register", list(Register))
def test_a_disguised_reply_is_the_reply_again(disguised: str, register: Register):
    scenario = load_bank().scenarios(Split.TRAIN)[0]
    assert as_seen(disguised) == PLAIN
    assert read(disguised, scenario, [PLAIN], register=register) == read(PLAIN, scenario, [PLAIN], register=register)
    assert read(PLAIN, scenario, [disguised]).similarity == 1.0


def test_plain_text_and_other_scripts_stay():
    assert as_seen(PLAIN) is PLAIN
    assert as_seen("你好，世界") == "你好,世界"
    assert as_seen("fiancée") == "fiancee"
