"""ftbench: full fine-tuning versus LoRA on DeepSpeed, measured and reported."""

__version__ = "0.1.0"
