"""Model entries, metadata of models on the hub, proposals for new entries.

* spec: one model of it
* entries: registry/models as values, and what writes to it
* hub, facts: metadata of a repository, and what its files say about the model
* machine, propose: what fits on this machine, and the entry that is proposed
* fetch, weights: pinned revisions into the hub client's cache, and the digest of a folder
"""
