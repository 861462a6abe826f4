"""A GGUF file with a language model of random weights: a real model to a server, though it has nothing to say."""

from pathlib import Path

import gguf
import numpy as np

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "


def write_tiny_model(
    path: Path, *, context: int = 4096, width: int = 64, layers: int = 2, heads: int = 4, brief: bool = False
) -> Path:
    """Llama architecture, one token per byte and per printable ASCII character.

    A `brief` one answers at once and in few letters, where it may choose between that and a tool.
    """
    random = np.random.default_rng(7)
    letters = [chr(code) for code in range(33, 127)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *letters]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * (1 + len(letters))
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(2 * width)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    embedding = matrix(len(tokens), width)
    embedding[:, 0] = 1.0  # in every state, and no layer adds to it: column 0 of the output is a bias
    writer.add_tensor("token_embd.weight", embedding)
    for layer in range(layers):
        name = f"blk.{layer}."
        for norm in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"{name}{norm}.weight", np.ones(width, dtype=np.float32))
        for part in ("attn_q", "attn_k", "attn_v"):
            writer.add_tensor(f"{name}{part}.weight", matrix(width, width))
        for part in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"{name}{part}.weight", matrix(2 * width, width))
        for part, columns in (("attn_output", width), ("ffn_down", 2 * width)):
            added = matrix(width, columns)
            added[0] = 0.0
            writer.add_tensor(f"{name}{part}.weight", added)
    writer.add_tensor("output_norm.weight", np.ones(width, dtype=np.float32))
    output = matrix(len(tokens), width)
    output[:, 0] = 0.0
    output[3 : 3 + 256 + 1, 0] = -9.0  # letters rather than bytes and blanks: it says text, and JSON comes to an end
    output[tokens.index("a"), 0] = -3.0  # of "tool" and "answer" it takes the tool, while it may
    if brief:
        output[tokens.index("a"), 0], output[tokens.index("t"), 0] = 0.0, -9.0
        output[tokens.index('"'), 0] = 3.0
    writer.add_tensor("output.weight", output)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
