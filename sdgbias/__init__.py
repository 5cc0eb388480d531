"""sdgbias: how biased is a vision-language model about sustainable development, and how much of it
can be taken out?"""

__version__ = "0.1.0"
