"""The child process of `mjfleet bench throughput`, prepared as a worker is.

python -m mjfleet.bench.timed <request as JSON>
"""

import sys

from mjfleet.worker.thread_limits import prepare

if __name__ == "__main__":
    prepare()
    from mjfleet.bench.rollouts import measure

    measure(sys.argv[1])
