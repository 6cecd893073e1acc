"""``python -m tests.e2e.engines`` builds the engines' managers into the cache, which takes longer than a test may."""

from tests.e2e.cluster.gomodules import built
from tests.e2e.engines import argo, karpenter, keda, kserve, kuberay, trainer
from tests.e2e.engines.engine import JOBSET, KUEUE, LEADERWORKERSET

if __name__ == "__main__":
    # Programs of one module are next to each other, so that one build makes them.
    managers = [JOBSET.manager, LEADERWORKERSET.manager, kuberay.OPERATOR, trainer.MANAGER, KUEUE.manager]
    argos, kedas = [argo.CONTROLLER, argo.executor()], [keda.OPERATOR, keda.ADAPTER, keda.WEBHOOKS]
    built([*managers, karpenter.CONTROLLER, *argos, *kedas, kserve.MANAGER], print)
