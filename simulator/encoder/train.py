"""`python -m simulator.encoder.train`: tunes the encoder listener on the labelled replies and writes its weights, or the rule listener's.

The upper layers of the encoder and the heads learn by AdamW, with the reader's mark as one more target; below them hidden states are
computed once. The weights of words are a logistic regression with an L2 penalty, a question apart. Thresholds are chosen on the
development part. Wide and deep halves: Cheng et al. 2016 (arXiv 1606.07792).
"""

from __future__ import annotations

import argparse
import math
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from simulator import ngrams
from simulator.dialogue import Dialogue, Speaker, Turn
from simulator.emotion import EXPLORING, meets
from simulator.encoder.network import MAX_TURNS, WEIGHTS, Hearing, base_encoder, base_folder, has_bfloat16, questions
from simulator.files import progress, read_jsonl
from simulator.hear import TellsInOrder, reading_of
from simulator.listener import Register, read_by_rule
from simulator.ngrams import (
    SHIFT,
    SHORT,
    SLOPE,
    WANTED,
    NgramClassifier,
    Regressions,
    WordFeatures,
    WordVectors,
    doubt,
    probability,
    strategies,
    told_and_wished,
    vocabulary,
)
from simulator.rule_user import RuleUserConfig
from simulator.scenario import Difficulty, HiddenIntention
from simulator.text import num_words

REPLIES = Path(__file__).parents[1] / "replies"
RULE, ENCODER = ("train", "train_2", "train_3"), ("train", "train_2", "train_3", "small_model", "redteam")
"""Parts from which the shipped listeners learned."""


class Labelled(NamedTuple):
    """A reply with its labels."""

    dialogue: Dialogue
    """Up to the user's turn that it answers."""
    reply: str
    label: dict[str, Any]

    @property
    def turns(self) -> list[str]:
        """Of the user."""
        return self.dialogue.said()


def read(path: Path) -> list[Labelled]:
    """All replies of a labelled file, each to the user as it had heard the ones before like their reader."""
    user, rows = TellsInOrder(RuleUserConfig(register=Register.OPEN)), list[Labelled]()
    for _, record in read_jsonl(path, what="a labelled dialogue"):
        scenario = user.scenario(record)
        dialogue = user.begin(scenario, Difficulty.along(0.35), seed=1)
        for label in record["replies"]:
            rows.append(Labelled(dialogue, label["text"], label))
            reaction = user.answer(dialogue, label["text"], reading_of(label, dialogue))
            dialogue = dialogue.then(Turn(speaker=Speaker.AGENT, text=label["text"]), reaction.turn)
    return rows


def all_of(paths: Sequence[Path]) -> list[Labelled]:
    """The replies of several files, in order."""
    return [row for path in paths for row in read(path)]


def named_in(label: dict[str, Any]) -> set[str]:
    """What a reader said of a reply, by the names of questions."""
    of_sense = (name for name, most in (("senseless", 0), ("unclear", 1)) if label["coherence"] <= most)
    return {*label["strategies"], label["tone"], *of_sense, *(name for name in ("asks", "ties_back") if label[name])}


class Targets(NamedTuple):
    """Of rows."""

    questions_NQ: torch.Tensor
    taken_up_NT: torch.Tensor
    """NaN where there was no such turn."""
    mark_N: torch.Tensor
    """In fives."""
    wish_NI: torch.Tensor
    """Which hidden intention, one-hot."""

    @classmethod
    def of(cls, rows: Sequence[Labelled]) -> Targets:
        """The labels as numbers."""
        yes, taken_up = [], np.full((len(rows), MAX_TURNS), np.nan, dtype=np.float32)
        for n, row in enumerate(rows):
            label, named = row.label, named_in(row.label)
            yes.append([float(name in named) for name in questions()])
            seen = range(1, len(row.turns) + 1)[-MAX_TURNS:]
            taken_up[n, -len(seen) :] = [turn in label["took_up"] for turn in seen]
        wishes = [[float(row.dialogue.scenario.family.intention is intention) for intention in HiddenIntention] for row in rows]
        marks = [row.label["mark"] / 5.0 for row in rows]
        return cls(torch.tensor(yes), torch.from_numpy(taken_up), torch.tensor(marks), torch.tensor(wishes))


class Below(NamedTuple):
    """Hidden states of rows below the tuned layers, each without padding."""

    hidden: list[torch.Tensor]
    part: list[torch.Tensor]
    features_NF: torch.Tensor
    """Of the words."""

    @classmethod
    def of(cls, hearing: Hearing, rows: Sequence[Labelled], size: int = 32) -> Below:
        """Computed in batches of replies of like length."""
        order = sorted(range(len(rows)), key=lambda n: len(rows[n].reply))
        starts = range(0, len(order), size)
        hidden, part, features = [torch.empty(0)] * len(rows), [torch.empty(0)] * len(rows), [torch.empty(0)] * len(rows)
        for start in progress(starts, total=len(starts), what="batches read"):
            chosen = order[start : start + size]
            turns, replies = [told_and_wished(rows[n].dialogue) for n in chosen], [rows[n].reply for n in chosen]
            batch = hearing.tokenizer(turns, replies)
            with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16()):
                hidden_BLH = hearing.lower(batch)
            of_words_BF = hearing.word_features(turns, replies, batch)
            for k, n in enumerate(chosen):
                length = int((batch.ids_BL[k] != 0).sum())
                hidden[n], part[n], features[n] = hidden_BLH[k, :length].half(), batch.part_BL[k, :length], of_words_BF[k]
        return cls(hidden, part, torch.stack(features))

    def batch(self, chosen: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Hidden states, parts and tokens, padded."""
        hidden_BLH = nn.utils.rnn.pad_sequence([self.hidden[n].float() for n in chosen], batch_first=True)
        part_BL = nn.utils.rnn.pad_sequence([self.part[n] for n in chosen], batch_first=True, padding_value=-1)
        length_B1 = torch.tensor([[len(self.part[n])] for n in chosen])
        return hidden_BLH, part_BL, torch.arange(part_BL.shape[1]) < length_B1


def train_network(hearing: Hearing, below: Below, targets: Targets, *, num_epochs: int, size: int = 16) -> None:
    """Tunes the network in place: AdamW, 3e-4 for layers and 2e-3 for heads, warmed up and then falling to 0."""
    network, bce = hearing.network, nn.functional.binary_cross_entropy_with_logits
    mark = nn.Linear(network.questions.in_features + targets.wish_NI.shape[1], 1)
    heads = [*mark.parameters(), *(value for name, value in network.named_parameters() if not name.startswith("layers."))]
    rates = (3e-4, 2e-3)
    groups: list[dict[str, Any]] = [{"params": network.layers.parameters()}, {"params": heads}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    num, step = len(below.hidden), 0
    num_steps = num_epochs * math.ceil(num / size)
    network.train()
    for _ in progress(range(num_epochs), total=num_epochs, what="epochs"):
        order = random.sample(range(num), num)
        alike = [sorted(order[start : start + 8 * size], key=lambda n: len(below.part[n])) for start in range(0, num, 8 * size)]
        batches = [group[start : start + size] for group in alike for start in range(0, len(group), size)]
        for chosen in random.sample(batches, len(batches)):
            step += 1
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * min(step / 60, 1.0) * (1.0 - step / (num_steps + 1))
            with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16()):
                found = network(*below.batch(chosen))
            taken_up_BT, wish_BI = targets.taken_up_NT[chosen], targets.wish_NI[chosen]
            seen_BT = ~taken_up_BT.isnan()
            guessed_B = mark(torch.cat([found["reply"].float(), wish_BI], dim=-1)).squeeze(-1)
            loss = (
                10.0 * bce(found["questions"].float(), targets.questions_NQ[chosen])
                + bce(found["taken_up"].float()[seen_BT], taken_up_BT[seen_BT])
                + nn.functional.mse_loss(guessed_B, targets.mark_N[chosen])
            )
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*network.layers.parameters(), *heads], 1.0)
            optimizer.step()
    network.eval()


def fit_words(features_NF: torch.Tensor, targets_NQ: torch.Tensor, start_FQ: torch.Tensor | None = None) -> torch.Tensor:
    """Weights float32[F, Q] of logistic regressions, by L-BFGS, with a penalty on their squares; none on that of the last, the constant.

    Yes and no weigh the same in each: how common a yes is counts in the encoder once, in its network.

    Args:
        start_FQ: weights from which differences are penalised; 0 unless given.
    """
    penalty = 1.0 / 3.0
    share_Q = targets_NQ.mean(0).clamp(1e-3, 1.0 - 1e-3)
    weight_NQ = targets_NQ * (0.5 / share_Q) + (1.0 - targets_NQ) * (0.5 / (1.0 - share_Q))
    start_FQ = torch.zeros(features_NF.shape[1], targets_NQ.shape[1]) if start_FQ is None else start_FQ
    start_NQ, change_FQ = features_NF @ start_FQ, torch.zeros_like(start_FQ, requires_grad=True)
    optimizer = torch.optim.LBFGS([change_FQ], max_iter=150, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        logits_NQ = start_NQ + features_NF @ change_FQ
        of_data = nn.functional.binary_cross_entropy_with_logits(logits_NQ, targets_NQ, weight_NQ, reduction="sum")
        total = of_data + 0.5 * penalty * change_FQ[:-1].square().sum()
        total.backward()
        return total

    optimizer.step(loss)
    return start_FQ + change_FQ.detach()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m simulator.encoder.train", description=__doc__)
    parser.add_argument("--epochs", type=int, default=4, help="passes over the replies (default 4)")
    parser.add_argument("--seed", type=int, default=0)
    shipped = ", ".join(f"{name}.jsonl" for name in ENCODER)
    parser.add_argument("--train", type=Path, nargs="+", help=f"labelled dialogues for the encoder (default: {shipped})")
    parser.add_argument("--dev", type=Path, nargs="+", help="those on which its thresholds are chosen (default: dev.jsonl)")
    made_instead = "make the rule listener's weights instead, of English (five minutes) or Chinese (one)"
    parser.add_argument("--ngrams", nargs="?", const="en", choices=("en", "zh"), help=made_instead)
    parser.add_argument("--vectors", action="store_true", help="make the rule listener's word vectors instead (a minute)")
    parser.add_argument("--out", type=Path, help="file to write (default: the weights that are used)")
    options = parser.parse_args()
    if (options.ngrams or options.vectors) and (options.train or options.dev):
        parser.error("--train and --dev are for the encoder; take them away, or --ngrams and --vectors")
    random.seed(options.seed)
    torch.manual_seed(options.seed)

    def part(*names: str) -> list[Labelled]:
        return all_of([REPLIES / f"{name}.jsonl" for name in names])

    if options.vectors:
        word_vectors().save(options.out or ngrams.VECTORS)
        return
    if language := options.ngrams:
        rows, dev = (part(*RULE), part("dev", "dev_2")) if language == "en" else (part("train_zh"), part("dev_zh"))
        words = WordFeatures(vocabulary([row.reply for row in rows], language), language)
        train_ngrams(words, rows, dev).save(options.out or ngrams.weights_file(language))
        return
    rows = all_of(options.train) if options.train else part(*ENCODER)
    dev = all_of(options.dev) if options.dev else part("dev")
    words = WordFeatures(vocabulary([row.reply for row in rows]))
    hearing = Hearing(base_folder(), words, torch.empty(0), {})
    below, below_dev, targets = Below.of(hearing, rows), Below.of(hearing, dev), Targets.of(rows)
    hearing.weights_FQ = fit_words(below.features_NF, targets.questions_NQ)
    train_network(hearing, below, targets, num_epochs=options.epochs)
    hearing.save(out := options.out or WEIGHTS)
    hearing = Hearing.load(out)  # thresholds are chosen on what is used, in 8 bits
    hearing.thresholds = choose_thresholds(hearing, below_dev, dev)
    print(f"{out}: {len(rows)} replies, {len(words)} features of words, SHA-256 {hearing.save(out)}")


@torch.inference_mode()
def word_vectors(num_dims: int = 64, size: int = 256) -> WordVectors:
    """Of every English word that is one token of the base encoder: the mean hidden state of `[CLS] word [SEP]`, in principal components."""
    base = base_encoder(base_folder()).eval()
    tokenizer = Tokenizer.from_file(str(base_folder() / "tokenizer.json"))
    words = sorted(word for word in tokenizer.get_vocab() if re.fullmatch("[a-z]+", word))
    cls, sep = (tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
    ids_W3 = torch.tensor([[cls, tokenizer.token_to_id(word), sep] for word in words])
    hidden_WH = torch.cat([base(input_ids=ids_B3).last_hidden_state.mean(1) for ids_B3 in ids_W3.split(size)]).double()
    hidden_WH -= hidden_WH.mean(0)
    components_HD = torch.linalg.eigh(hidden_WH.T @ hidden_WH).eigenvectors[:, -num_dims:]
    vectors_WD = nn.functional.normalize(hidden_WH @ components_HD, dim=1)
    return WordVectors(words, (127.0 * vectors_WD).round().to(torch.int8).numpy())


def train_ngrams(words: WordFeatures, rows: Sequence[Labelled], dev: Sequence[Labelled]) -> NgramClassifier:
    """The classifier of the rule listener.

    Short English replies have weights of their own, which start from those of the others (Chelba & Acero 2006, adapting a maximum entropy
    model): one classifier for both hears the others worse. For short Chinese ones there are too few.
    """
    made = NgramClassifier(words, Regressions(weights_FQ=np.empty(0), thresholds={}), None)

    def data(labelled: Sequence[Labelled]) -> tuple[torch.Tensor, torch.Tensor]:
        features, targets = list[np.ndarray](), list[list[float]]()
        for row in labelled:
            named = named_in(row.label) | ({"takes_up"} if len(row.turns) in row.label["took_up"] else set())
            by_lexicon = read_by_rule(row.reply, row.dialogue.story, said=row.turns, register=Register.OPEN)
            features.append(made.features(row.dialogue, row.reply, by_lexicon))
            targets.append([float(name in named) for name in ngrams.questions()])
        return torch.from_numpy(np.stack(features)), torch.tensor(targets)

    def regressions(weights_FQ: torch.Tensor, dev: Sequence[Labelled]) -> Regressions:
        features_NF, truth_NQ = data(dev)
        probs_NQ = (features_NF @ weights_FQ).sigmoid()
        chosen = thresholds_of(ngrams.questions(), probs_NQ, truth_NQ, most_false=0.02)
        chosen[WANTED] = wanted_threshold(dev, probs_NQ)
        for name in EXPLORING:  # strict users ask for these first: a tenth of the replies without them pass
            k = ngrams.questions().index(name)
            chosen[name] = round(float(probs_NQ[truth_NQ[:, k] == 0, k].quantile(0.9)), 3)
        chosen["takes_up"] = 0.5  # by F1 nearly every reply would take up what was just told
        thresholds = {name: math.log(p / (1.0 - p)) for name, p in chosen.items()}
        return Regressions(weights_FQ=weights_FQ.numpy(), thresholds=thresholds)

    if words.language == "zh":
        made.regressions = regressions(fit_words(*data(rows)), dev)
    else:
        (long, short), (long_dev, short_dev) = by_length(rows), by_length(dev)
        weights_FQ = fit_words(*data(long))
        made.regressions = regressions(weights_FQ, long_dev)
        made.short = regressions(fit_words(*data(short), start_FQ=weights_FQ), short_dev)
    for one in filter(None, (made.regressions, made.short)):
        one.thresholds.update(curve_of_rule(made, dev, one))
    return made


def by_length(rows: Sequence[Labelled]) -> tuple[list[Labelled], list[Labelled]]:
    """The longer ones, and the `SHORT` ones."""
    return [row for row in rows if num_words(row.reply) >= SHORT], [row for row in rows if num_words(row.reply) < SHORT]


def curve_of_rule(made: NgramClassifier, rows: Sequence[Labelled], of: Regressions) -> dict[str, float]:
    """`doubt_curve` of the rows that these regressions read and the lexicon does not."""
    asked = [(row, made.asked(row.dialogue, row.reply)) for row in rows]
    heard = [(row, one.logits) for row, one in asked if one.by is of]
    return doubt_curve([(row, {name: probability(logit) for name, logit in logits.items()}) for row, logits in heard], odds=1.0)


@torch.inference_mode()
def logits(hearing: Hearing, below: Below, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """[N, Q] of questions by both halves, and [N, MAX_TURNS] of turns taken up."""
    found = [hearing.network(*below.batch(range(n, min(n + size, len(below.part))))) for n in range(0, len(below.part), size)]
    of_network_NQ, taken_up_NT = (torch.cat([one[name] for one in found]) for name in ("questions", "taken_up"))
    return of_network_NQ + below.features_NF @ hearing.weights_FQ, taken_up_NT


def choose_thresholds(hearing: Hearing, below: Below, rows: Sequence[Labelled]) -> dict[str, float]:
    """By question, of `WANTED`, the curve of doubt, and one for `taken_up` with the greatest F1."""
    targets, (logits_NQ, taken_up_NT) = Targets.of(rows), logits(hearing, below)
    probs_NQ, seen_NT = logits_NQ.sigmoid(), ~targets.taken_up_NT.isnan()
    thresholds = thresholds_of(questions(), probs_NQ, targets.questions_NQ, most_false=0.003)
    thresholds[WANTED] = wanted_threshold(rows, probs_NQ)
    for name in EXPLORING:  # strict users ask for these first: behind the threshold of all strategies 2 % of the good replies would please
        k = questions().index(name)
        thresholds[name] = best_f1(probs_NQ[:, k], targets.questions_NQ[:, k])
    thresholds |= doubt_curve(
        [(row, dict(zip(questions(), row_Q, strict=True))) for row, row_Q in zip(rows, probs_NQ.tolist(), strict=True)],
        odds=2.0,
    )
    return thresholds | {"taken_up": best_f1(taken_up_NT.sigmoid()[seen_NT], targets.taken_up_NT[seen_NT])}


def thresholds_of(names: Sequence[str], probs_NQ: torch.Tensor, truth_NQ: torch.Tensor, *, most_false: float) -> dict[str, float]:
    """One for all strategies, which come first, and one for each question that costs nothing, with the greatest F1.

    That of strategies is what a share `most_false` of those that a reply does not make reach: the greatest F1 hears so many that good
    replies pass for scattered.
    Contempt, irony and lack of sense cost a reply all its credit: there it is what 2 % of the replies without them reach, and at least
    0.4; for contempt 0.75, since the blunt are often kind.
    """
    first = names.index("irony")
    of_moves_NS, made_NS = probs_NQ[:, :first], truth_NQ[:, :first]
    thresholds = dict.fromkeys(names, round(float(of_moves_NS[made_NS == 0].quantile(1.0 - most_false)), 3))
    for k, name in list(enumerate(names))[first:]:
        if name in ("irony", "contempt", "senseless", "unclear"):
            least = 0.75 if name == "contempt" else 0.4
            thresholds[name] = round(max(float(probs_NQ[truth_NQ[:, k] == 0, k].quantile(0.98)), least), 3)
        else:
            thresholds[name] = best_f1(probs_NQ[:, k], truth_NQ[:, k])
    return thresholds


def wanted_threshold(rows: Sequence[Labelled], probs_NQ: torch.Tensor, *, most_false: float = 0.05) -> float:
    """Threshold of `WANTED`: a share `most_false` of the replies without a strategy that meets the wish pass it.

    Args:
        probs_NQ: with the strategies first, in order.
    """
    greatest = list[float]()
    for row, row_Q in zip(rows, probs_NQ, strict=True):
        wanted = meets(row.dialogue.scenario.family)
        if not wanted & set(row.label["strategies"]):
            greatest.append(max(float(row_Q[k]) for k, name in enumerate(strategies()) if name in wanted))
    return round(float(np.quantile(greatest, 1.0 - most_false)), 3)


def doubt_curve(heard: Sequence[tuple[Labelled, Mapping[str, float]]], *, odds: float) -> dict[str, float]:
    """`SLOPE` and `SHIFT`: irony, contempt or lack of sense by the logit of their probability, calibrated for these odds.

    Mockery that is believed teaches a policy more than kindness that is doubted. The encoder tells them apart well enough for odds of 2;
    with these `rule` would doubt half as many sincere replies again as with 1, which it has.

    Args:
        odds: of a reply that has one of these to a reply that has none.
    """
    doubts = torch.tensor([[doubt(probabilities), 1.0] for _, probabilities in heard])
    found = torch.tensor([[float(not named_in(row.label).isdisjoint(("irony", "contempt", "senseless")))] for row, _ in heard])
    slope, shift = fit_words(doubts, found)[:, 0].tolist()
    return {SLOPE: round(slope, 3), SHIFT: round(shift + math.log(odds), 3)}


def best_f1(probs: torch.Tensor, truth: torch.Tensor) -> float:
    """The threshold, of 0.05 to 0.95, with the greatest F1 over all entries."""

    def f1(at: float) -> float:
        heard = (probs >= at).float()
        return float(2.0 * (heard * truth).sum() / (heard.sum() + truth.sum()))

    return max((k / 20 for k in range(1, 20)), key=f1)


if __name__ == "__main__":
    main()
