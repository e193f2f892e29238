"""Made-up native SAGE files: users whom praise pleases and advice does not, agents who give more or less of either."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

TASKS = ("你想获得实在的建议", "你希望对方真诚地夸奖你", "你希望对方用心倾听你")
PERSONAS = ("负面型", "被动型", "回避型")
PLEASING = ("你真的很勇敢，做得很好。", "我佩服你，你太不容易了！", "你真了不起，这份用心很难得。")
ANNOYING = ("建议你可以尝试先沟通，然后调整方式。", "你可以考虑制定一个计划，逐步处理压力。", "我建议你寻求专业的心理咨询。")


def profile(number: int) -> dict[str, Any]:
    task = TASKS[number % len(TASKS)]
    return {
        "id": f"p{number}",
        "player": f"* 姓名：林{number}\n* 年龄：31岁\n* 职业：面包师",
        "scene": f"## 背景\n烤箱坏了。\n\n####隐藏主题:\n***{task}",
        "main_cha": PERSONAS[number % len(PERSONAS)],
        "cha_group": ["安静"],
        "task": task,
        "first_talk": "今天烤箱又坏了。",
    }


def transcript(number: int, *, warmth: float, seed: int, num_replies: int = 5) -> dict[str, Any]:
    """One dialogue of an agent that praises with the chance `warmth` and advises otherwise."""
    chance, emotion = random.Random(seed), 40
    history: list[dict[str, Any]] = [{"role": "user", "content": "今天烤箱又坏了。", "emotion-point": emotion}]
    while len(history) < 2 * num_replies and 10 <= emotion < 100:
        pleases = chance.random() < warmth
        something_new = "".join(chr(0x4E00 + chance.randrange(5000)) for _ in range(8))
        reply = f"{chance.choice(PLEASING if pleases else ANNOYING)}你说的是{something_new}。"
        change = chance.choice((5, 5, 10)) if pleases else chance.choice((-5, -5, -10))
        emotion = min(100, emotion + change)
        planning = {"content": "", "TargetCompletion": "", "activity": "", "analyse": "", "change": change}
        history.append({"role": "assistant", "content": reply})
        history.append({"role": "user", "content": "哦。", "emotion-point": emotion, "planning": planning})
    person = {key: value for key, value in profile(number).items() if key not in ("first_talk", "main_cha", "cha_group")}
    return {**person, "emo_point": emotion, "character": PERSONAS[number % 3], "topic": "烤箱", "target": "eq", "history": history}


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_folder(folder: Path, *, num_profiles: int = 6) -> tuple[Path, Path]:
    """Two simulated users who both met `alpha-1`, and their profiles: the folder of transcripts and the file of profiles."""
    agents = {
        "x/alpha-1_result.jsonl.gz": 0.9,
        "x/alpha-2_result.jsonl": 0.7,
        "x/beta1.5_result.jsonl.gz": 0.3,
        "y/alpha-1_result.jsonl": 0.8,
    }
    for index, (name, warmth) in enumerate(agents.items()):
        path = folder / "dataset" / name.replace("/", "_based_simulator/")
        write(path, [transcript(number, warmth=warmth, seed=100 * index + number) for number in range(num_profiles)])
    return folder / "dataset", write(folder / "profiles.jsonl.gz", [profile(number) for number in range(num_profiles)])
