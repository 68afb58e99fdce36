"""From a case to a model: Hugging Face causal LM, then PEFT adapters. PEFT's spellings live here alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.integrations import HfDeepSpeedConfig

from bench.errors import UnsupportedCase
from bench.records.schema import ModelDims, Parameters
from bench.spec.case import ALL_LINEAR, Case
from bench.spec.paths import local_path
from bench.worker.device import DTYPES, Device, generator_for


def load_config(case: Case) -> PretrainedConfig:
    """The model's config with the case's overrides and attention kernel.

    Raises:
        UnsupportedCase: no such model, an override that the config does not know, or a sequence longer
            than the model's positions.
    """
    source = str(local_path(case.model) or case.model)
    try:
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise UnsupportedCase(f"model {case.model!r} cannot be loaded: {str(error).splitlines()[0]}") from error
    for key, value in case.model_overrides.items():
        if not hasattr(config, key):
            raise UnsupportedCase(f"model_overrides: the config of {case.model!r} has no field {key!r}")
        setattr(config, key, value)
    if config.num_hidden_layers != len(getattr(config, "layer_types", None) or range(config.num_hidden_layers)):
        config.layer_types = config.layer_types[:1] * config.num_hidden_layers
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and case.seq_len > positions:
        raise UnsupportedCase(f"seq_len {case.seq_len} exceeds the {positions} positions of {case.model!r}")
    config.use_cache = False
    return config


def build_model(
    case: Case, device: Device, ds_config: dict[str, Any] | None
) -> tuple[nn.Module, Parameters, ModelDims]:
    """Build the model that every engine wraps.

    Under ZeRO-3 parameters are created sharded, so that the whole model never exists on one rank.

    Args:
        case: the case.
        device: this rank's device.
        ds_config: the resolved DeepSpeed config, or None under ddp.

    Returns:
        The model, with frozen base and adapters under LoRA, its counts before any wrapping, and its
        dimensions.

    Raises:
        UnsupportedCase: model, attention kernel or target modules cannot be had.
    """
    stage3 = ds_config is not None and ds_config["zero_optimization"]["stage"] == 3
    # transformers looks at this weakly referenced object to decide whether to shard while building.
    sharding = HfDeepSpeedConfig(_for_building(ds_config)) if stage3 else None
    model, config = build_base(case, device, sharded=stage3)
    del sharding
    base = count(model.parameters())
    embedding = count(unique_weights(model.get_input_embeddings(), model.get_output_embeddings()))
    dims = model_dims(config, model)
    if case.tuning == "lora":
        model = add_adapters(model, case)
    if case.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()  # from_pretrained leaves models in evaluation mode
    counts = Parameters(
        total=count(model.parameters()), base=base, embedding=embedding,
        trainable=count(p for p in model.parameters() if p.requires_grad),
    )  # fmt: skip
    return model, counts, dims


def _for_building(ds_config: dict[str, Any]) -> dict[str, Any]:
    """The config without batch sizes: `zero.Init` knows no sequence axis and would find them wrong."""
    left_out = ("train_batch_size", "gradient_accumulation_steps")
    return {key: value for key, value in ds_config.items() if key not in left_out}


def build_base(case: Case, device: Device, sharded: bool) -> tuple[nn.Module, PretrainedConfig]:
    """The model before adapters: pretrained, or with random weights drawn by name.

    Args:
        case: the case.
        device: where to place it, unless sharded.
        sharded: an HfDeepSpeedConfig of stage 3 is alive, which builds the model in shards.

    Raises:
        UnsupportedCase: the model or its attention kernel cannot be had.
    """
    config, place = load_config(case), not sharded
    options: dict[str, Any] = {"dtype": DTYPES[case.precision], "attn_implementation": case.attention}
    try:
        if case.weights == "random":
            with device.torch if place else nullcontext():
                model = AutoModelForCausalLM.from_config(config, **options)
            draw_weights(model, config, case.seed)
            return model, config
        if place and device.is_cuda:
            options["device_map"] = {"": device.torch}
        source = str(local_path(case.model) or case.model)
        return AutoModelForCausalLM.from_pretrained(source, config=config, **options), config
    except (ImportError, OSError) as error:
        raise UnsupportedCase(f"model {case.model!r}: {str(error).splitlines()[0]}") from error


@torch.no_grad()
def draw_weights(model: nn.Module, config: PretrainedConfig, seed: int) -> None:
    """Fill every parameter with weights that depend on its name and the seed alone."""
    std = getattr(config, "initializer_range", 0.02)
    for name, parameter in model.named_parameters():
        with whole(parameter, write=True):
            if parameter.dim() >= 2:
                parameter.normal_(0.0, std, generator=generator_for(name, seed, parameter.device))
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)


@contextmanager
def whole(parameter: nn.Parameter, write: bool = False) -> Iterator[None]:
    """Gather a parameter that ZeRO-3 has sharded; with `write`, what rank 0 puts into it is kept by all."""
    if hasattr(parameter, "ds_id"):
        from deepspeed.runtime.zero import GatheredParameters

        with GatheredParameters([parameter], modifier_rank=0 if write else None):
            yield
    else:
        yield


def add_adapters(model: nn.Module, case: Case) -> nn.Module:
    """Freeze the model and add LoRA adapters whose weights depend on name and seed alone.

    Raises:
        UnsupportedCase: a target module matches no linear layer; the message lists the real names.
    """
    adapted = wrap_adapters(model, case)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_A" in name:
                bound = 1 / math.sqrt(parameter.shape[1])  # PEFT's kaiming_uniform(a=√5)
                generator = generator_for(name, case.seed, parameter.device)
                parameter.uniform_(-bound, bound, generator=generator)
    return adapted


def wrap_adapters(model: nn.Module, case: Case) -> nn.Module:
    """Freeze the model and add LoRA adapters as PEFT initialises them; works on the meta device.

    Raises:
        UnsupportedCase: as `add_adapters`.
    """
    from peft import LoraConfig, get_peft_model

    targets = resolve_targets(model, case.target_modules or ())
    config = LoraConfig(
        r=case.lora_rank, lora_alpha=case.lora_alpha, lora_dropout=case.lora_dropout,
        target_modules=targets, bias="none", task_type="CAUSAL_LM",
    )  # fmt: skip
    # The engine keeps fp32 master weights of what is trained, so the adapters stay in the compute type.
    adapted = get_peft_model(model, config, autocast_adapter_dtype=False)
    dtype = DTYPES[case.precision]
    for parameter in adapted.parameters():
        if parameter.requires_grad and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    return adapted


def linear_names(model: nn.Module) -> list[str]:
    """Last name parts of the linear layers that LoRA may adapt: all but the output head."""
    head = model.get_output_embeddings()
    found = (n.rsplit(".", 1)[-1] for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head)
    return sorted(set(found))


def resolve_targets(model: nn.Module, targets: tuple[str, ...]) -> list[str]:
    """Check target modules against the model; each must match a linear layer.

    Raises:
        UnsupportedCase: naming the target and the names that exist.
    """
    names = linear_names(model)
    if targets == (ALL_LINEAR,):
        return names
    for target in targets:
        if target not in names:
            raise UnsupportedCase(f"target_modules: {target!r} matches no linear layer; there are: {', '.join(names)}")
    return list(targets)


def count(parameters: Any) -> int:
    """Elements of parameters, each once, also where ZeRO-3 has sharded them."""
    return sum(getattr(p, "ds_numel", p.numel()) for p in parameters)


def unique_weights(*modules: nn.Module | None) -> list[nn.Parameter]:
    """The weights of modules, a tied one once."""
    return list({id(m.weight): m.weight for m in modules if m is not None}.values())


def model_dims(config: PretrainedConfig, model: nn.Module) -> ModelDims:
    """Dimensions from the config; `head_dim` is read, never assumed to be hidden / heads."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return ModelDims(
        architecture=type(model).__name__, hidden=config.hidden_size, layers=config.num_hidden_layers,
        heads=config.num_attention_heads, kv_heads=getattr(config, "num_key_value_heads", config.num_attention_heads),
        head_dim=head_dim, intermediate=config.intermediate_size, vocab=config.vocab_size,
        tied_embeddings=bool(config.tie_word_embeddings),
    )  # fmt: skip
