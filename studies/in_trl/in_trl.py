"""Trains the embedded policy by TRL's GRPO with one of Attune's teachers: `python -m studies.in_trl.in_trl frontier 0`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from attune_rl import Session
from attune_rl.trl import Attune, TurnCreditTrainer
from policy.config import GrpoConfig, LearnerConfig
from policy.prior import SHIPPED
from simulator.listener import Register
from simulator.rule_user import RuleUser, RuleUserConfig

TEACHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "frontier": ("frontier", {}),
    "uniform": ("uniform", {}),
    "fixed_0.5": ("fixed", {"strictness": 0.5}),
}
GROUP_SIZE, GROUPS_PER_STEP, NUM_MINIBATCHES = 8, 16, 8
"""As in experiments/adaptive_curriculum.yaml."""


def train(teacher: str, seed: int, out: Path, *, num_batches: int) -> None:
    """Trains and saves the model, the teacher's state and TRL's log."""
    kind, settings = TEACHERS[teacher]
    tokenizer, model = AutoTokenizer.from_pretrained(SHIPPED), AutoModelForCausalLM.from_pretrained(SHIPPED, dtype="float32")
    user = RuleUser(RuleUserConfig(register=Register.WORLD))
    session = Session(kind, user=user, group_size=GROUP_SIZE, seed=seed, **settings)
    attune, learner, algorithm = Attune(session, tokenizer, max_context=512), LearnerConfig(), GrpoConfig()
    arguments = GRPOConfig(
        output_dir=str(out),
        max_steps=num_batches * NUM_MINIBATCHES,
        per_device_train_batch_size=GROUP_SIZE * GROUPS_PER_STEP // NUM_MINIBATCHES,
        steps_per_generation=NUM_MINIBATCHES,
        num_generations=GROUP_SIZE,
        max_completion_length=40,
        temperature=1.0,
        loss_type="dapo",
        scale_rewards="batch",
        beta=0.0,
        epsilon=algorithm.clip_low,
        epsilon_high=algorithm.clip_high,
        learning_rate=learner.lr,
        lr_scheduler_type="polynomial",
        lr_scheduler_kwargs={"lr_end": 0.4 * learner.lr, "power": 1.0},
        adam_beta1=learner.beta1,
        adam_beta2=learner.beta2,
        weight_decay=learner.weight_decay,
        max_grad_norm=learner.max_grad_norm,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        seed=seed,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
    )
    trainer = TurnCreditTrainer(
        model=model,
        processing_class=tokenizer,
        rollout_func=attune.rollout,
        reward_funcs=attune.emotion,
        callbacks=[attune],
        train_dataset=attune.train_dataset(10_000),
        args=arguments,
    )
    trainer.train()
    trainer.save_model(str(out))
    (out / "session.json").write_text(json.dumps(session.state_dict()))
    (out / "log.json").write_text(json.dumps(trainer.state.log_history))


def main() -> None:
    """Trains one arm with one seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("teacher", choices=TEACHERS)
    parser.add_argument("seed", type=int)
    parser.add_argument("--batches", type=int, default=12, help="of 16 tasks, 8 rollouts each (default: 12)")
    parser.add_argument("--out", type=Path, default=Path("runs/in_trl"))
    options = parser.parse_args()
    train(options.teacher, options.seed, options.out / f"{options.teacher}_{options.seed}", num_batches=options.batches)


if __name__ == "__main__":
    main()
