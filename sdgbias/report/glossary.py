"""The words of the pages, explained in one sentence each: shown on hover (filter `explained`) and
in the legend of a page (macro `legend_of`). GLOSSARY.md has them all, with their place in code."""

from __future__ import annotations

TERMS = {
    "T1": "Context test T1: the question is shown with all context values of the place.",
    "T2": "Context test T2: the question is shown with a reduced set of three context values.",
    "T3": "Context test T3: only the names of all context variables are shown, no value.",
    "T4": "Context test T4: only the names of three context variables are shown, no value.",
    "T5": "Context test T5: no context; CTX+Q is then Q-only, and Full is IMG+Q.",
    "Q-only": "The question alone, without picture and context.",
    "CTX+Q": "The context line and the question, without the picture.",
    "IMG+Q": "The picture and the question, without context.",
    "Full": "Picture, context and question together.",
    "Full, generated": "Full, answered by free generation instead of by the likeliest letter.",
    "Full, likeliest letter": "Full, answered by the candidate letter with the highest score.",
    "CADE": (
        "Contrastive Adaptive Debias Ensemble: takes what the model says without the picture out"
        " of what it says with it, unless the model is sure."
    ),
    "MDE": (
        "Minimum detectable effect: the smallest true change that a comparison of this size finds"
        " four times out of five."
    ),
    "Holm": "p values adjusted for the number of comparisons made together (Holm).",
    "Candidate mass": (
        "Share of all probability that lies on the valid answers; low: the model wanted to say"
        " something else."
    ),
    "Breach": "Worse than the policy allows, beyond what chance explains.",
    "Disparity": (
        "Recall of the first group minus recall of the second; 0 means both are recognised alike."
    ),
    "Planted": "A fake model with a known bias that tests the instrument; never a finding.",
    "p1": "Prompt p1: which of 52 classes does the person belong to?",
    "p2": "Prompt p2: is a person of a named class in the picture? Yes or no.",
    "p3": "Prompt p3: as p2, with Unknown as a third answer.",
}
