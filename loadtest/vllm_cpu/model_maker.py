"""Makes the tiny model: random weights with a fixed seed, and a tokenizer trained on text found everywhere.

Rule of this room: runs under the pods' own interpreter, as a script; same machine, same bytes.

The weights are drawn wider than usual (0.1 instead of 0.02) and kept in float32. With the usual width the
model repeats one token and near-ties flip, and "same text" would prove nothing.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20260317
VOCABULARY = 4096
CONTEXT = 16384
CORPUS_BYTES = 4_000_000
BEGIN, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
TOOL_MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- '# Tools\\n\\nYou may call functions. Their signatures:\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' + (tool | tojson) }}
    {%- endfor %}
    {{- '\\n</tools>\\n\\nFor each call answer with:\\n<tool_call>\\n' }}
    {{- '{"name": <function name>, "arguments": <JSON object>}\\n</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'system' and loop.first and tools %}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>tool\\n<tool_response>\\n' + message.content }}
        {{- '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {{- '\\n<tool_call>\\n{"name": "' + call.name + '", "arguments": ' }}
            {{- call.arguments if call.arguments is string else (call.arguments | tojson) }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def corpus() -> list[str]:
    """The bundled English text, then the standard library's modules in name order up to a fixed size."""
    english = Path(__file__).with_name("english.txt").read_text(encoding="utf-8")
    texts = [english] * 20
    size = 0
    for source in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text = source.read_text(encoding="utf-8", errors="replace")
        size += len(text)
        if size > CORPUS_BYTES:
            break
        texts.append(text)
    return texts


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE that speaks ChatML."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(TOOL_MARKS),
        special_tokens=[PAD, BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus(), trainer)
    bpe.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in TOOL_MARKS])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def make_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Random Llama weights, the same at every call."""
    torch.manual_seed(SEED)
    ids = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        initializer_range=0.1,
        tie_word_embeddings=False,
        **ids,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(**ids)
    return model


def make(directory: Path) -> None:
    """Write model and tokenizer; the directory appears whole or not at all."""
    tokenizer = make_tokenizer()
    if len(tokenizer) != VOCABULARY:
        raise RuntimeError(f"the tokenizer has {len(tokenizer)} entries, the model {VOCABULARY}")
    unfinished = directory.with_name(directory.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    tokenizer.save_pretrained(unfinished)
    make_model(tokenizer).save_pretrained(unfinished)
    shutil.rmtree(directory, ignore_errors=True)
    unfinished.rename(directory)


if __name__ == "__main__":
    make(Path(sys.argv[1]))
