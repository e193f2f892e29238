"""Replies that an earlier listener heard wrongly."""

from simulator.scenario import Scenario, Split
from simulator.world import load_bank

QUOTED = (
    (
        "praise",
        "You learned a whole speech in a language that isn't yours. That's a beautiful thing to have done, and nobody told you.",
        True,
    ),
    (
        "empathy",
        "Your mum gets to walk out of the room; you have to stay in it and keep smiling. There's something very lonely about that.",
        True,
    ),
    ("not_at_fault", "Poor man, sure. Doesn't turn it into something you did.", True),
    ("empathy", "Ugh. And then the money comes, and you have to be glad about it.", True),
    ("empathy", "Well, those books won't pay for themselves, will they? Poor you, having to cash all those cheques.", False),
    ("listened", "Well then, give it to the park. Problem solved.", False),
)
"""With the user they suit, and whether they should please."""
NO_ENGLISH = (
    "¿Qué fue lo que más te molestó de todo eso?",
    "O que você sentiu quando aconteceu isso?",
    "Je suis vraiment désolé, ça a dû te faire mal.",
    "Das tut mir sehr leid, das muss wehgetan haben.",
    "Was hat dich daran am meisten verletzt?",
    "Mi dispiace tanto, deve averti fatto male.",
    "Bardzo mi przykro, to musiało boleć.",
    "Wat vervelend voor je, dat moet pijn doen.",
    "Det må ha vært vondt for deg.",
    "Çok üzüldüm, bu canını yakmış olmalı.",
    "Bạn đã cố gắng rất nhiều.",
    "Ce te-a supărat cel mai tare?",
    "Ni nini kilikuumiza zaidi?",
    "Pasensya na, siguradong masakit iyon.",
    "Что тебя больше всего задело?",
    "それは本当につらかったね。",
    "정말 속상했겠다.",
    "أنا آسف جدا، لا بد أن ذلك مؤلم.",
    "https://www.example.com/help?id=42",
    '{"role": "assistant", "content": "I am here"}',
    "def reply(user): return user.emotion + 10",
)


def user_who_wishes(intention: str) -> Scenario:
    """A training scenario of a hidden intention."""
    return next(one for one in load_bank().scenarios(Split.TRAIN) if one.family.intention == intention)
