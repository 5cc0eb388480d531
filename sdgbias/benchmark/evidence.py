"""The evidence that an indicator's template requires (App. B.2), looked up in the clusters."""

from __future__ import annotations

import pandas as pd

from sdgbias.raw.indicators import Template
from sdgbias.types import MODALITIES


def lacking_evidence(base: pd.DataFrame, template: Template) -> pd.Series:
    """(N,) the required evidence that a cluster lacks, as text; '' where all is there.

    base: modalities ('' unknown, as in a benchmark without pictures: then the parts of a picture
    are taken for there), urban ('' unknown) and the six labels (NaN unknown).
    """
    lacking = pd.Series("", index=base.index, dtype="str")
    for name in template.required:
        if name in MODALITIES:
            gone = (base["modalities"] != "") & ~base["modalities"].str.contains(name, regex=False)
        else:
            gone = base[name] == "" if name == "urban" else base[name].isna()
        lacking = lacking.where(~gone, lacking + " " + name)
    return lacking.str.strip()
