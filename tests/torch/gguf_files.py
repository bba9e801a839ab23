"""Small GGUF files to read."""

import numpy as np
import pytest


def write_gguf(file, model):
    """A llama as llama.cpp writes it: rows of queries and keys interleaved for its rotation."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    config, writer = model.config, gguf.GGUFWriter(str(file), "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    rotated = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for key, tensor in model.state_dict().items():
        array, heads = tensor.numpy(), rotated.get(key.split(".")[-2])
        if heads:
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(names.get_name(key, (".weight",)), np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
