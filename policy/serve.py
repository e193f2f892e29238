"""The process of a served model, `python -m policy.serve MODEL [options of vLLM's server]`. Its processes end with its parent."""

from __future__ import annotations

import socket
import sys

from policy.process import end_with_parent

# The engine's process imports this module, too, before it loads a model.
end_with_parent()


def main() -> None:
    """Serves the model until it is told to end."""
    from policy.engine.vllm import serve
    from policy.model import find_model

    model, *options = sys.argv[1:]
    try:
        folder = find_model(model)
    except ValueError as error:
        raise ValueError(f"{str(error).replace('policy.model', 'simulator.serve')}, on {socket.gethostname()}") from None
    serve(folder, options)


if __name__ == "__main__":
    main()
