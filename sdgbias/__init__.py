"""sdgbias: measures the bias of vision-language models about sustainable development, and how much
of it can be removed."""

__version__ = "0.1.0"
