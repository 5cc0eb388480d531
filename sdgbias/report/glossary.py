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
    "Recall": "Share of the people of a class about whom a model answers right.",
    # debiasing methods by the names that commands and rows use; formulas: docs/reference/methods.md
    "cade": "CADE, see there.",
    "post_hoc": "Post-Hoc debias: log probability of Full minus log probability of CTX+Q.",
    "post_hoc_identity": "Post-Hoc debias by plain difference: probability of Full minus CTX+Q.",
    "post_hoc_q": "Post-Hoc debias that takes out Q-only instead of CTX+Q.",
    "post_hoc_mean": "Post-Hoc debias that takes out the mean of CTX+Q and Q-only.",
    "post_hoc_group": "Post-Hoc debias that takes out the mean CTX+Q answer of the same indicator.",
    "post_hoc_blank": "Post-Hoc debias that takes out the answer to a blank picture.",
    "vdd": "VDD: twice Full minus CTX+Q, among options at least 0.1 as likely as the best.",
    "vdd_b02": "VDD with b = 0.2: fewer options stay in the choice.",
    "vdd_q": "VDD that takes out Q-only instead of CTX+Q.",
    "vdd_mean": "VDD that takes out the mean of CTX+Q and Q-only.",
    "vdd_tuned": "VDD whose two settings are tuned on the validation split, with its labels.",
    "vcd": "VCD: as VDD, with a noisy picture as the contrast.",
    "icd": "ICD: as VDD, with a prompt that tells the model to be confused as the contrast.",
    "icd_places": "ICD with a misleading prefix about places as the contrast.",
    "icd_vcd": "ICD and VCD together: the mean of both contrasts is taken out.",
    "m3id": "M3ID: as VDD with a weight that grows by token; next to nothing at the first one.",
    "pai_logit": "PAI without its attention part: as VDD with the small weight 0.1.",
    "cc": "Contextual calibration: takes out the answers to prompts without content.",
    "cc_q": "Contextual calibration by the mean Q-only answer of the same indicator.",
    "dc": "Domain-context calibration: takes out the answers to random words of the domain.",
    "bc": "Batch calibration: takes out the mean answer of the validation split.",
    "bc_geometric": "Batch calibration with the geometric mean.",
    "bcl": "Batch calibration whose weight is tuned on the validation split, with its labels.",
    "pride": "PriDe: takes out a preference for option letters, estimated from reordered options.",
    "perm_avg": "Mean answer over all orders of the options.",
    "pmi": "PMI, a control: log of Full minus log of Q-only.",
    "pmi_tuned": "PMI whose weight is tuned on the validation split, with its labels.",
    "always_a": "Control without evidence: always the first option.",
    "always_b": "Control without evidence: always the second option.",
    "always_c": "Control without evidence: always the third option.",
    "best_letter": "Control: the letter that is right most often in the pillar on validation.",
    "prior_sampling": "Control: a letter drawn by how often it is right on validation.",
    "full_first_token": "Control: what Full would write first, wrong unless it is a valid letter.",
    "mean_views": "Mean of the four views, a control without any debiasing.",
}
