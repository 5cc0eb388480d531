#!/bin/sh
# Put on Prefect's server what the nights need: a work pool per kind of machine, deployments, automations. Twice is once. From the
# project's folder, with the environment active, PREFECT_API_URL and SDGBIAS_HOME set; KIND=MODELS_AT_A_TIME for each pool of prefect.yaml:
#
#   sh infra/deploy.sh cpu=1 h100=8
set -eu
: "${PREFECT_API_URL:?not set; e.g. http://127.0.0.1:4200/api}"
[ $# -gt 0 ] || { echo "usage: sh infra/deploy.sh KIND=MODELS_AT_A_TIME ..., e.g. cpu=1 h100=8" >&2; exit 2; }
for kind in "$@"; do
    if ! printf '%s\n' "$kind" | grep -Eqx '[a-z0-9]+=[1-9][0-9]*'; then
        echo "error: '$kind': write KIND=MODELS_AT_A_TIME, e.g. h100=8" >&2
        exit 2
    fi
done
# the night itself runs in the pool of CPU models
case " $*" in *" cpu="*) ;; *) set -- cpu=1 "$@" ;; esac

for kind in "$@"; do
    pool="sdgbias-${kind%%=*}"
    # a pool that is there keeps its type (kubernetes-pool.json)
    prefect work-pool inspect "$pool" >/dev/null 2>&1 || prefect --no-prompt work-pool create "$pool" --type process
    if [ "$pool" = sdgbias-cpu ]; then
        # the night itself runs in this pool, in a queue of its own: the limit is that of the models' queue
        prefect work-queue set-concurrency-limit default "${kind#*=}" --pool "$pool"
        prefect work-queue inspect nights --pool "$pool" >/dev/null 2>&1 || prefect work-queue create nights --pool "$pool"
    else
        prefect work-pool set-concurrency-limit "$pool" "${kind#*=}"
    fi
done
prefect --no-prompt deploy --prefect-file infra/prefect.yaml --all
# last: a server on SQLite that loads its automations, as it does when it starts, hangs where one is made meanwhile (Prefect before
# 3.8.8, issue 23055)
for name in $(sed -n 's/^  - name: //p' infra/automations.yaml); do
    prefect --no-prompt automation delete "$name" >/dev/null 2>&1 || true
done
prefect automation create --from-file infra/automations.yaml
