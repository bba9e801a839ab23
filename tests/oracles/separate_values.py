"""Training where the values of a fused weight are parameters of their own."""

import torch
from torch.func import functional_call


def value_rows(name, heads=4, key_heads=2, width=8):
    """(the fused parameter's name, its axis, which numbers along it are values), as the forward
    passes of these architectures slice them."""
    if name == "gpt2":  # (in, out): queries, keys, values
        return "attn.c_attn.weight", 1, list(range(2 * heads * width, 3 * heads * width))
    if name == "gpt_neox":  # head by head: query, key, value
        starts = [(3 * head + 2) * width for head in range(heads)]
        return "query_key_value.weight", 0, [i for s in starts for i in range(s, s + width)]
    if name == "phi3":
        start = (heads + key_heads) * width
        return "qkv_proj.weight", 0, list(range(start, start + key_heads * width))
    return "in_proj_weight", 0, list(range(2 * heads * width, 3 * heads * width))


def train_apart(name, model, loss, make_optimizer, lr, scale, steps):
    """Parameters by name after `steps` of gradient descent on `loss(call)`, where the values are
    leaf tensors with scale · lr, put together with the rest of their weight in every step."""
    ending, axis, rows = value_rows(name)
    fused = {n: axis for n, _ in model.named_parameters() if n.endswith(ending)}
    fused |= {n.replace("weight", "bias"): 0 for n in fused}
    rest, values = {}, {}
    for n, parameter in model.named_parameters():
        start = parameter.detach().clone()
        rest[n] = start.requires_grad_()
        if n in fused:
            part = start.detach().index_select(fused[n], torch.tensor(rows))
            values[n] = part.requires_grad_()

    def together():
        put = {n: rest[n].index_copy(fused[n], torch.tensor(rows), values[n]) for n in values}
        return {**rest, **put}

    optimizer = make_optimizer(
        [
            {"params": list(rest.values()), "lr": lr},
            {"params": list(values.values()), "lr": lr * scale},
        ]
    )
    for _ in range(steps):
        optimizer.zero_grad()
        parameters = together()
        loss(lambda **inputs: functional_call(model, parameters, (), inputs)).backward()  # noqa: B023
        optimizer.step()
    return {n: x.detach() for n, x in together().items()}
