"""Whatever comes in whatever order: no quota is let above its max, and a scheduler that starts now counts the same."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gpushare.api import names
from gpushare.api.crd.elastic_quota_tree import QuotaTree
from gpushare.api.request.amounts import amounts_of
from gpushare.scheduler.cache.pod_records import followed_record_of
from tests.randomized import rounds
from tests.unit.scheduler.test_quotas import BAD, HALVES, MEM, WHOLE, ask, create, root, tree
from tests.unit.scheduler.test_quotas_of_every_pod import plain, processors
from tests.unit.scheduler.world import World, gpu_node

TREES = (
    HALVES,
    root(a={"min": 4, "max": 10}, b={"min": 8, "max": 12}, whole=20),
    root(a={"max": 8}, b={"max": 30}, whole=32),
    processors(a=4, b=6),
    processors(a=9, b=3),
    BAD,
)
NODES = ("n1", "n2", "n3")
SPACES = st.sampled_from(("x", "z", "elsewhere"))


class Quotas(RuleBasedStateMachine):
    """Pods come, are bound, leave and end; trees come, change and go; room is kept and given up. Some ask for no GPU."""

    @initialize(first=st.sampled_from(TREES))
    def start(self, first: dict[str, object]) -> None:
        self.world = World()
        self.world.add_node(gpu_node("n1", 32768))
        self.world.add_node(gpu_node("n2", 65536))
        self.world.add_node(gpu_node("n3", 4096, 4096, 4096))
        self.pods: dict[str, str] = {}
        #: UIDs of pods without a GPU that were let in and not shown bound yet.
        self.under_way: set[str] = set()
        self.born = 0
        self.generation = 1
        self.world.view.quotas.upsert(tree(first))

    def one(self, data: st.DataObject) -> tuple[str, str] | None:
        return data.draw(st.sampled_from(sorted(self.pods.items()))) if self.pods else None

    @rule(chosen=st.sampled_from((*TREES, None)))
    def the_tree_changes_or_goes(self, chosen: dict[str, object] | None) -> None:
        self.generation += 1
        if chosen is not None:
            self.world.view.quotas.upsert(tree(chosen, generation=self.generation))
            for name in self.pods:  # all pods are listed once more where it names more of them
                self.world.see(name)
        else:
            for record in list(self.world.view.quotas.trees.values()):
                self.world.view.quotas.remove(f"kube-system/{record.name}", record)
        followed = self.world.view.quotas.followed
        # Nobody would tell of the others, that they are bound.
        self.under_way = {uid for uid in self.under_way if self.pods[uid.removeprefix("uid-")] in followed}

    @rule(namespace=SPACES, units=st.integers(1, 9), whole=st.booleans(), data=st.data())
    def a_pod_comes(self, namespace: str, units: int, whole: bool, data: st.DataObject) -> None:
        name = f"p{self.born}"
        self.born += 1
        create(self.world, namespace, name, units, labels=WHOLE if whole else {})
        self.pods[name] = namespace
        self.bind(name, namespace, data)

    @rule(data=st.data())
    def it_is_bound_where_it_may(self, data: st.DataObject) -> None:
        one = self.one(data)
        if one is None or f"uid-{one[0]}" in {*self.world.view.bound, *self.world.view.besides}:
            return
        if one[0].startswith("plain"):
            self.promise(*one)
        else:
            self.bind(*one, data)

    @rule(namespace=SPACES, cpu=st.integers(0, 4), ours=st.booleans())
    def a_pod_without_a_gpu_comes(self, namespace: str, cpu: int, ours: bool) -> None:
        """One that another scheduler places has its node at once: nobody holds it back."""
        name = f"plain{self.born}"
        self.born += 1
        scheduler = names.SCHEDULER_NAME if ours else "default-scheduler"
        pod = plain(namespace, name, scheduler=scheduler, node="" if ours else "n1", cpu=cpu)
        self.world.api.create(pod)
        self.world.see(name)
        self.pods[name] = namespace
        if ours:
            self.promise(name, namespace)

    def promise(self, name: str, namespace: str) -> None:
        """As the binder does for a pod that asks for no GPU."""
        uid, quotas = f"uid-{name}", self.world.view.quotas
        fits, _ = ask(self.world, namespace, name, "n1")
        new = uid not in self.under_way
        pod = self.world.api_pod(namespace, name)
        refusal = quotas.promise(uid, f"{namespace}/{name}", amounts_of(pod))
        assert bool(fits) == (not refusal), "filter and bind say the same"
        if not refusal and namespace in quotas.followed:
            self.under_way.add(uid)
        books, asked = quotas.books, amounts_of(pod)["cpu"]
        leaf = books.leaf(namespace)
        if new and not refusal and asked and books.tree is not None and leaf is not None:
            for place in books.tree.path(leaf):
                most = books.tree.quotas[place].max.get("cpu")
                assert most is None or self.sums(books.tree, "cpu")[place] <= most

    @rule(data=st.data())
    def its_binding_does_not_come(self, data: st.DataObject) -> None:
        if (one := self.one(data)) is not None:
            self.world.view.quotas.end_promise(f"uid-{one[0]}")
            self.under_way.discard(f"uid-{one[0]}")

    def bind(self, name: str, namespace: str, data: st.DataObject) -> None:
        """Reserve what filter offers, as the binder does."""
        uid, key = f"uid-{name}", f"{namespace}/{name}"
        fits, _ = ask(self.world, namespace, name, *NODES)
        if not fits:
            return
        node = data.draw(st.sampled_from(fits))
        new = self.world.ledger.held(uid) is None
        books = self.world.view.quotas.books
        record = self.world.view.waiting[uid]
        assert record.request is not None
        self.world.ledger.nominations.remove(uid)
        self.world.ledger.reserve(uid, key, record.request, node)
        leaf = books.leaf(namespace)
        if new and books.tree is not None and leaf is not None:
            for place in books.tree.path(leaf):
                most = books.tree.quotas[place].max.get(MEM)
                assert most is None or self.sums(books.tree)[place] <= most

    @rule(data=st.data())
    def the_informer_shows_it_bound(self, data: st.DataObject) -> None:
        if (one := self.one(data)) is None:
            return
        held = self.world.ledger.held(f"uid-{one[0]}")
        if held is None and f"uid-{one[0]}" not in self.under_way:
            return
        self.under_way.discard(f"uid-{one[0]}")
        pod = self.world.api.pods[f"{one[1]}/{one[0]}"]
        pod["spec"]["nodeName"] = "n1" if held is None else held.node
        self.world.see(one[0])

    @rule(data=st.data())
    def its_end_is_asked_for(self, data: st.DataObject) -> None:
        if (one := self.one(data)) is None:
            return
        self.world.view.quotas.ended(f"uid-{one[0]}")
        if data.draw(st.booleans()):
            pod = self.world.api.pods[f"{one[1]}/{one[0]}"]
            pod["metadata"]["deletionTimestamp"] = "2026-11-22T10:00:00Z"
            self.world.see(one[0])

    @rule(data=st.data())
    def room_is_kept_for_it(self, data: st.DataObject) -> None:
        if (one := self.one(data)) is None or (
            record := self.world.view.waiting.get(f"uid-{one[0]}")
        ) is None:
            return
        assert record.request is not None
        if self.world.ledger.held(record.uid) is None:
            plan = self.world.ledger.evictions.plan(record.request, NODES, lambda uid: None)
            if plan is not None:
                self.world.ledger.nominations.add(record.uid, record.request, plan)

    @rule(data=st.data())
    def it_is_gone(self, data: st.DataObject) -> None:
        if (one := self.one(data)) is None:
            return
        del self.pods[one[0]]
        self.under_way.discard(f"uid-{one[0]}")
        # The informer tells of the end of each pod that it has told of.
        record = followed_record_of(self.world.api_pod(one[1], one[0]), (one[1],))
        del self.world.api.pods[f"{one[1]}/{one[0]}"]
        if record is not None:
            self.world.view.remove_pod(record)

    def sums(self, found: QuotaTree | None, resource: str = MEM) -> dict[int, int]:
        """By definition: what all pods ask for that are bound, being bound, or have room, in thousandths, by quota."""
        sums = dict.fromkeys(range(0 if found is None else len(found.quotas)), 0)
        if found is None:
            return sums
        view, ledger = self.world.view, self.world.ledger
        for name, namespace in self.pods.items():
            uid = f"uid-{name}"
            if name.startswith("plain"):
                pod = self.world.api_pod(namespace, name)
                if namespace in found.leaf_of and (pod.spec.node_name or uid in self.under_way):
                    for place in found.path(found.leaf_of[namespace]):
                        sums[place] += amounts_of(pod).get(resource, 0)
                continue
            if resource != MEM:
                continue
            record = view.bound.get(uid) or view.waiting[uid]
            held = ledger.held(uid)
            if namespace in found.leaf_of and (uid in view.bound or held or ledger.nominations.node_of(uid)):
                given = 0 if held is None else sum(share.units for share in held.allocation.gpus)
                for place in found.path(found.leaf_of[namespace]):
                    sums[place] += max(record.amounts[names.GPU_MEM], 1000 * given)
        return sums

    @invariant()
    def figures_are_those_of_the_definition(self) -> None:
        books = self.world.view.quotas.books
        for resource in () if books.tree is None else books.tree.resources:
            for place, held in self.sums(books.tree, resource).items():
                assert books.held(place, resource) == held

    @invariant()
    def a_fresh_count_says_the_same(self) -> None:
        quotas = self.world.view.quotas
        before, used = quotas.books.tree, quotas.books.usage()
        if before is None:
            return

        def staying() -> list[int]:
            places = range(len(before.quotas))
            return [quotas.books.staying(place, one) for place in places for one in before.resources]

        stayed = staying()
        quotas.books.set_tree(before)
        view = self.world.view
        for uid in (*view.waiting, *view.bound, *view.besides, *self.under_way):
            quotas.look(uid)
        assert quotas.books.usage() == used
        assert staying() == stayed


Quotas.TestCase.settings = settings(max_examples=rounds(60, soak=100), stateful_step_count=25, deadline=None)
TestQuotas = Quotas.TestCase
