"""`sdgbias serve`: a small read-only web application over the results file. It shows what is stored and computes nothing that is not."""
