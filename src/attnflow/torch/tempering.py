"""Attention flatter or sharper than it was trained: scores divided by a temperature."""

import contextlib
import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from attnflow._checks import choice, positive
from attnflow.torch.cutting import ONE_A_HEAD, forward_names
from attnflow.torch.masking import scaled, scaled_by_head, spread
from attnflow.torch.modules import AttentionModule, Projection, attention_modules

Temperature = float | Tensor | Mapping[str, float | Tensor]
SCALES = ("scaling", "scale")
SOFTCAP = "attn_logit_softcapping"
POSITIONS = ("position_bias", "relative_position_bias", "alibi")
QUERY_NORM = r"(q|query|qk)_?(layer_?)?norm"


@contextlib.contextmanager
def temperature(model: nn.Module, tau: Temperature) -> Iterator[nn.Module]:
    """While entered, whatever the softmax takes, scores and sink logits, is divided by tau: more
    than one flattens attention, less sharpens it. One number for all, one a head (a tensor), or
    either by the names of modules, the others staying as they are.

    Exact: of a number the module's own scale (and softcap) is divided, of numbers by head the
    queries are. Where neither is possible (one number a head, with queries normalized after their
    projection or with a softcap; scores with a bias of positions) it says so.

    >>> layer = nn.MultiheadAttention(4, 1, batch_first=True).eval()
    >>> x = torch.randn(1, 3, 4)
    >>> with temperature(layer, 1e9):
    ...     _, weights = layer(x, x, x)
    >>> bool((weights - 1 / 3).abs().max() < 1e-6)
    True
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module, factors in _factors(model, tau):
            inner, scale = module.module, _scale_name(module)
            if scale is not None and _uniform(factors):
                for name in (scale, SOFTCAP):
                    stack.enter_context(_divided(inner, name, float(factors[0])))
            else:
                stack.enter_context(scaled_by_head(module, _linear_query(module), factors))
            for name in _sinks(inner):
                stack.enter_context(scaled(inner, inner, name, factors))
        yield model


@torch.no_grad()
def set_temperature(model: nn.Module, tau: Temperature) -> None:
    """The same for good: query weights and biases, or the gain of their norm, and sink logits are
    multiplied by 1/tau, so that it is saved with the model. Softcaps stand in the config and are
    refused; norms take one number a module."""
    chosen = _factors(model, tau)
    for module, factors in chosen:  # refuse before anything is changed
        if getattr(module.module, SOFTCAP, None) is not None:
            raise ValueError(f"{module.name} caps its scores: use `temperature`, or the config")
        _gains(module, factors) if _query_norms(module) else _linear_query(module)
    for module, factors in chosen:
        inner = module.module
        if _query_norms(module):
            for gain in _gains(module, factors):
                gain.mul_(factors[0].to(gain))
        else:
            _multiply(_linear_query(module), factors)
        for name in _sinks(inner):
            parameter = inner.get_parameter(name)
            parameter.mul_(factors.to(parameter))


def _multiply(query: Projection, factors: Tensor) -> None:
    weight, bias = query.weight, query.bias
    rows = spread(query.index, factors, weight.shape[query.axis]).to(weight)
    weight.mul_(rows[:, None] if query.axis == 0 else rows)
    if bias is not None:
        bias.mul_(spread(query.bias_index, factors, bias.shape[0]).to(bias))


def _factors(model: nn.Module, tau: Temperature) -> list[tuple[AttentionModule, Tensor]]:
    """1/tau of each head, for the modules that are meant."""
    modules = {module.name: module for module in attention_modules(model)}
    if not modules:
        raise ValueError("no attention was found in the model: it has no temperature")
    named = tau if isinstance(tau, Mapping) else dict.fromkeys(modules, tau)
    found = []
    for name, value in named.items():
        choice("attention module", name, modules)
        module = modules[name]
        value = torch.as_tensor(value, dtype=torch.float64).detach().cpu()
        positive("tau", value.numpy())
        if value.shape not in ((), (module.heads,)):
            raise ValueError(
                f"tau of {name} must be one number or one for each of {module.heads} heads "
                f"(got shape {tuple(value.shape)})"
            )
        if any(part in forward_names(module.module) for part in POSITIONS):
            raise ValueError(
                f"{name} ({type(module.module).__name__}) adds a bias of positions to its scores, "
                "which a temperature would have to divide too"
            )
        found.append((module, 1 / value.expand(module.heads)))
    return found


def _uniform(factors: Tensor) -> bool:
    return bool((factors == factors[0]).all())


def _scale_name(module: AttentionModule) -> str | None:
    """The attribute by which its forward pass multiplies scores."""
    read = forward_names(module.module)
    named = (x for x in SCALES if x in read and isinstance(getattr(module.module, x, None), float))
    return next(named, None)


def _sinks(inner: nn.Module) -> list[str]:
    return [name for name in ONE_A_HEAD if name in inner._parameters]


def _query_norms(module: AttentionModule) -> list[nn.Module]:
    return [x for n, x in module.module.named_children() if re.fullmatch(QUERY_NORM, n)]


def _linear_query(module: AttentionModule) -> Projection:
    """The query projection, where scores are linear in it."""
    kind = f"{module.name} ({type(module.module).__name__})"
    if module.query is None:
        raise ValueError(f"{kind}: its query projection is not known")
    caps = [x for x in (SOFTCAP, "clip_qkv") if getattr(module.module, x, None) is not None]
    caps += ["a norm of queries"] if _query_norms(module) else []
    if caps:
        raise ValueError(f"{kind} has {caps[0]}: heads cannot have temperatures of their own")
    return module.query


def _gains(module: AttentionModule, factors: Tensor) -> list[nn.Parameter]:
    """The parameters that multiply the norm's output, tried on numbers: some norms add 1."""
    (norm,) = _query_norms(module)
    found = list(norm.parameters())
    kind = f"{module.name} ({type(module.module).__name__})"
    if not _uniform(factors):
        raise ValueError(f"{kind} has a norm of queries: heads cannot have their own temperatures")
    if found:
        shape = found[0].shape
        sample = torch.linspace(-1, 1, shape.numel(), device=found[0].device).reshape(shape)
        sample = sample.to(found[0].dtype)
        halved = {name: parameter / 2 for name, parameter in norm.named_parameters()}
        twice = 2 * torch.func.functional_call(norm, halved, (sample,))
        if torch.allclose(twice, norm(sample), rtol=1e-2, atol=1e-4):
            return found
    raise ValueError(f"{kind}: its norm of queries has no gain to divide; use `temperature`")


@contextlib.contextmanager
def _divided(inner: nn.Module, name: str, factor: float) -> Iterator[None]:
    was = getattr(inner, name, None)
    try:
        if was is not None:
            setattr(inner, name, was * factor)
        yield
    finally:
        if was is not None:
            setattr(inner, name, was)
