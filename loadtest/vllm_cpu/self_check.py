"""Fails unless the built environment is what pods need: vLLM on CPU, NIXL, and a model that loads.

Rule of this room: runs under the pods' own interpreter, as a script; changes nothing.
"""

from __future__ import annotations

import importlib
import sys


def check(model: str) -> None:
    """Raise on the first thing that is missing."""
    platform = importlib.import_module("vllm.platforms").current_platform
    if not platform.is_cpu():
        raise RuntimeError(f"vLLM took this machine for {platform.device_name}, not for a CPU")
    importlib.import_module("nixl._api")
    transformers = importlib.import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], add_generation_prompt=True)
    print(f"vLLM {importlib.import_module('vllm').__version__}, model {model}")


if __name__ == "__main__":
    check(sys.argv[1])
