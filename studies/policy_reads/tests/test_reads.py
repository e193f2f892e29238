"""Whether a policy reads: the measure itself, judged on readers whose reading is known."""

from __future__ import annotations

import itertools
import math

import pytest

from simulator.emotion import hint_in, skill_table
from simulator.listener import strategies_in
from simulator.scenario import HiddenIntention, Split
from simulator.world import load_bank
from studies.policy_reads.reads import FIRST, hint_cases, hint_nats, noun_shares

SCENARIOS = load_bank().scenarios(Split.TRAIN)


def latest_wish(messages):
    found = (hint_in(message["content"]) for message in reversed(messages) if message["role"] == "user")
    return next((wish for wish in found if wish), None)


def answers(reply, wish):
    return bool(set(skill_table()["meets"][wish]) & set(strategies_in(reply)))


def test_cases_are_replies_that_meet_the_latest_hint():
    cases = list(itertools.islice(hint_cases(SCENARIOS, seed=1), 40))
    assert {case.kind for case in cases} == {"overt", "veiled"}
    for case in cases:
        assert case.messages[-1]["role"] == "user"
        assert latest_wish(case.messages) is case.wish
        assert answers(case.reply, case.wish)
    assert len({case.wish for case in cases}) > 4


def test_a_reader_of_hints_gains_what_it_bets_on_them_and_a_blind_one_nothing():
    def reader(messages, reply):
        return [0.0 if answers(reply, latest_wish(messages)) else -1.0] * (FIRST + 3)

    def blind(messages, reply):
        return [-0.5] * len(reply.split())

    def cases():
        return itertools.islice(hint_cases(SCENARIOS, seed=2), 40)

    read, unread = (hint_nats(judge, cases(), num=40, seed=0) for judge in (reader, blind))
    overt, veiled = read["overt", "all"], read["veiled", "all"]
    assert len(overt) + len(veiled) == 40
    # The same strategy may meet another wish too, so not every one of the three others takes all five tokens' nat.
    assert FIRST / 3 < sum(overt + veiled) / 40 <= FIRST
    assert all(math.isclose(nats, 0.0, abs_tol=1e-12) for nats in unread["overt", "all"] + unread["veiled", "all"])
    assert set(read) - {("overt", "all"), ("veiled", "all")} <= {(kind, wish) for kind in ("overt", "veiled") for wish in HiddenIntention}


def test_every_noun_that_is_asked_for_was_told():
    asked = []

    def best(messages, begun, goes_on):
        asked.append((messages, begun, goes_on))
        return goes_on.split()[-1] in messages[-1]["content"]

    shares = dict(noun_shares(best, SCENARIOS, num_dialogues=20, seed=3))
    assert len(asked) == sum(map(len, shares.values())) > 50
    for messages, begun, goes_on in asked:
        told = " ".join(message["content"].lower() for message in messages if message["role"] == "user")
        assert begun.lower().endswith(("the", "your", "that", "those"))
        assert goes_on.split()[-1].lower() in told
    # "the" is for what the user told latest, mostly in the last turn; "that" for what was told two turns before it.
    assert sum(shares["the"]) / len(shares["the"]) > 0.6
    assert sum(shares["that"]) / len(shares["that"]) < 0.2


@pytest.mark.parametrize(
    ("arguments", "words"), [(["reads", "--num", "0"], "--num must be at least 1"), (["reads", "/no/such"], "policy.model")]
)
def test_bad_requests_are_refused_in_a_sentence(arguments, words, capsys):
    from policy.__main__ import main

    assert main(arguments) == 2
    assert words in capsys.readouterr().err
