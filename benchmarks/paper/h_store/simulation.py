"""Simulate the partitions of several nodes, with the library's scheduler and a virtual clock (H-Store §6.6).

The scheduler, its rules and the tracking table are the library's own; clocks, networks and the times of
queries are simulated. Clients submit transactions in a closed loop. Each partition has one thread. A
distributed transaction enters the queues of all its partitions at once, so that no two transactions wait for
each other.

Candidates for speculation are the single-partition transactions in the queue of a stalled partition. With
speculation, additional clients submit single-partition transactions, so there are always candidates. All
other transactions are the same in all modes (§6.6.1).
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence

from benchmarks.paper.h_store.jobs import Job, Partition
from benchmarks.paper.h_store.measurements import Costs, Measurements
from penstock.speculating.rules import ConflictRules, Step
from penstock.speculating.scheduler import Mode, Scheduler, Stall, StallPoint, Transaction
from penstock.speculating.tracking import TrackingTable, find_prefetchable

__all__ = ["Cluster"]

_MAX_EXAMINED = 10
_MAX_RESTARTS = 3
"""After this many restarts of a transaction, no other transaction runs at its stalls, so that it ends."""


class Cluster:
    """Runs transactions in virtual time.

    Parameters
    ----------
    rules : ConflictRules
        The rules for conflicts.
    mode : str
        See `Scheduler`.
    partitions, partitions_per_node : int
        The number of all partitions, and the number of partitions per node.
    costs : Costs
        The assumed times.
    prefetches : bool
        Whether queries of distributed transactions run before they are requested.
    count_candidates : bool
        Whether to examine all candidates of each choice, in order to count those without a conflict.
    """

    def __init__(
        self,
        rules: ConflictRules,
        mode: Mode,
        partitions: int,
        partitions_per_node: int = 8,
        costs: Costs | None = None,
        *,
        prefetches: bool = False,
        count_candidates: bool = False,
    ) -> None:
        self.scheduler = Scheduler(rules, mode)
        self.measured = Measurements()
        self._rules, self._costs = rules, costs or Costs()
        self._node = [number // partitions_per_node for number in range(partitions)]
        self._partitions = [Partition(number) for number in range(partitions)]
        self._prefetches, self._counts = prefetches, count_candidates
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._work: deque[Transaction] = deque()
        self._is_over = False
        self._extra: list[deque[Transaction]] = [deque() for _ in range(partitions)]

    def run(
        self, work: Sequence[Transaction], extra: Sequence[Transaction], clients: int, more: int = 10
    ) -> Measurements:
        """Run transactions; return the measurements.

        Parameters
        ----------
        work : sequence of Transaction
            The transactions that clients submit. A client submits the next transaction once it has its
            answer.
        extra : sequence of Transaction
            Single-partition transactions that additional clients submit again and again.
        clients, more : int
            The number of clients, and the number of additional clients for each partition.
        """
        self._work = deque(work)
        for one in extra:
            if len(one.partitions) == 1:
                self._extra[one.base].append(one)
        for client in range(clients):
            self._submit(client)
        for place, mine in enumerate(self._extra):
            for _ in range(more if mine else 0):
                self._submit(~place)
        while self._events:
            self._now, _, action = heapq.heappop(self._events)
            action()
        return self.measured

    def _after(self, delay_us: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + delay_us, next(self._order), action))

    def _message_us(self, one: int, other: int) -> float:
        if one == other:
            return 0.0
        same = self._node[one] == self._node[other]
        return self._costs.local_us if same else self._costs.remote_us

    def _submit(self, client: int) -> None:
        if self._is_over:
            return
        if client < 0:
            mine = self._extra[~client]
            mine.rotate(-1)
            self._enter(Job(mine[-1], client, self._now))
        elif self._work:
            self._enter(Job(self._work.popleft(), client, self._now))
        else:  # later transactions are not counted, because fewer clients run
            self._is_over = True
            self.measured.us, self.measured.counted = self._now, self.measured.committed

    def _enter(self, job: Job) -> None:
        one = job.transaction
        if len(one.partitions) > 1:
            delay = max(self._message_us(one.base, place) for place in one.partitions)
        else:
            delay = 0.0
        self._after(delay, lambda: self._queue(job))

    def _queue(self, job: Job) -> None:
        for place in sorted(job.transaction.partitions):
            self._partitions[place].queue.append(job)
        for place in sorted(job.transaction.partitions):
            self._next(self._partitions[place])

    def _answer(self, job: Job, *, speculated: bool = False) -> None:
        self.measured.committed += 1
        self.measured.speculated += speculated
        spent = self._now - job.submitted_us
        several = len(job.transaction.partitions) > 1
        (self.measured.distributed_us if several else self.measured.single_us).append(spent)
        self._submit(job.client)

    # A partition

    def _next(self, partition: Partition) -> None:
        """Let an idle partition start the next job."""
        if partition.is_running or partition.holder is not None or not partition.queue:
            return
        job = partition.queue.popleft()
        if len(job.transaction.partitions) == 1:
            self._occupy(partition, self._run_us(job.transaction), lambda: self._answer(job))
        else:
            self._grant(partition, job)

    def _occupy(self, partition: Partition, spent_us: float, action: Callable[[], None]) -> None:
        """Keep the partition's thread busy for a time, then run an action. Wait if the thread is busy."""
        if partition.is_running:
            partition.waiting.append((spent_us, action))
            return
        self._note_stall(partition)
        partition.is_running = True

        def end() -> None:
            partition.is_running = False
            partition.idle_since_us = self._now
            action()
            if partition.waiting and not partition.is_running:
                self._occupy(partition, *partition.waiting.pop(0))
            elif not partition.is_running:
                self._next(partition)
                self._speculate(partition)

        self._after(spent_us, end)

    def _note_stall(self, partition: Partition) -> None:
        job = partition.holder
        if job is None:
            return
        is_base = job.transaction.base == partition.number
        waits_for_locks = is_base and job.granted < len(job.transaction.partitions)
        key = "locks" if waits_for_locks else job.stalls[partition.number].point.value, is_base
        spent = self._now - partition.idle_since_us
        self.measured.stalls_us[key] = self.measured.stalls_us.get(key, 0.0) + spent
        partition.idle_since_us = self._now

    def _run_us(self, one: Transaction, *, estimated: bool = False) -> float:
        steps = len(one.estimate if estimated else one.path)
        each = self._costs.query_us + (self._costs.track_us if self.scheduler.mode == "occ" else 0.0)
        return self._costs.begin_us + each * steps

    def _grant(self, partition: Partition, job: Job) -> None:
        one = job.transaction
        partition.holder = job
        partition.idle_since_us = job.granted_us[partition.number] = self._now
        stall = job.stalls[partition.number] = Stall(one, partition.number)
        if partition.number == one.base:
            stall.point = StallPoint.QUERY_RESPONSE
        if self._prefetches:
            if job.table is None:
                places = find_prefetchable(self._rules, one.estimate, one.base)
                job.table = TrackingTable(self._rules, [one.estimate[place] for place in places])
            for step in job.table.steps:
                if step.partition == partition.number:
                    stall.has_executed = True
                    self._prefetch(partition, job, step)

        def acknowledge() -> None:
            if self._partitions[one.base].holder is job:
                self._note_stall(self._partitions[one.base])
            job.granted += 1
            if job.granted == len(one.partitions):
                job.started_us = self._now
                self._occupy(self._partitions[one.base], self._costs.begin_us, lambda: self._continue(job))

        self._after(self._message_us(partition.number, one.base), acknowledge)
        self._speculate(partition)

    def _prefetch(self, partition: Partition, job: Job, step: Step) -> None:
        table = job.table
        self.measured.prefetched += 1

        def executed() -> None:
            self._after(self._message_us(partition.number, job.transaction.base), arrived)

        def arrived() -> None:
            if table is not None:
                table.arrive(step)
            if step in job.waits_for:
                job.waits_for.discard(step)
                if not job.waits_for:
                    self._continue(job)

        self._occupy(partition, self._costs.query_us, executed)

    # A distributed transaction

    def _continue(self, job: Job) -> None:
        """Execute the next queries at the base, or send queries to a remote partition and wait."""
        one, costs = job.transaction, self._costs
        base = self._partitions[one.base]
        begin = job.at
        end = begin
        while end < len(one.path) and one.path[end].partition in (-1, one.base):
            end += 1
        if end > begin:

            def local() -> None:
                self._execute(job, end)
                self._continue(job)

            self._occupy(base, costs.query_us * (end - begin), local)
            return
        if begin == len(one.path):
            self._prepare(job)
            return
        while end < len(one.path) and one.path[end].partition not in (-1, one.base):
            end += 1
        batch = one.path[begin:end]
        missing = [step for step in batch if not self._has_result(job, step)]
        self._execute(job, end)
        job.stalls[one.base].point = StallPoint.QUERY_RESPONSE
        if not missing:
            self._continue(job)
            return
        late = {step for step in missing if job.table is not None and step in job.table.steps}
        remote = [step for step in missing if step not in late]
        if not remote:
            job.waits_for = late
            self._speculate(base)
            return
        self._send(job, remote)

    def _execute(self, job: Job, end: int) -> None:
        job.at = end
        for stall in job.stalls.values():
            stall.executed = end

    def _has_result(self, job: Job, step: Step) -> bool:
        """Return whether the transaction need not wait for a step's result.

        A prefetched result may have arrived. A change has no result, because it is sent with prepare.
        """
        if job.table is None:
            return False
        place = job.table.invoke(step)
        if place is None:
            return self._rules.changes(step)
        return job.table.has_arrived(place)

    def _send(self, job: Job, steps: Sequence[Step]) -> None:
        one = job.transaction
        places = sorted({step.partition for step in steps})
        open_places = set(places)
        sent = self._now
        for place in places:
            count = sum(step.partition == place for step in steps)
            self._after(
                self._message_us(one.base, place),
                lambda place=place, count=count: self._occupy(  # type: ignore[misc]
                    self._partitions[place],
                    self._costs.query_us * count,
                    lambda: self._after(self._message_us(place, one.base), lambda: answered(place)),
                ),
            )

        def answered(place: int) -> None:
            open_places.discard(place)
            if open_places:
                return
            if job.first_query_us < 0:
                job.first_query_us = sent - job.started_us
                self.measured.first_us.append((job.first_query_us, self._now - job.started_us))
            base = self._partitions[one.base]
            self._occupy(base, 0.0, lambda: self._continue(job))

        self._speculate(self._partitions[one.base])

    def _prepare(self, job: Job) -> None:
        one = job.transaction
        open_places = set(one.partitions)
        for stall in job.stalls.values():
            if stall.partition == one.base:
                stall.point = StallPoint.COMMIT

        def reach(place: int) -> None:
            partition, stall = self._partitions[place], job.stalls[place]
            spent = self._costs.prepare_us
            if self.scheduler.mode == "occ":
                spent += self._costs.validate_us * len(stall.speculated)

            def prepared() -> None:
                stall.point = StallPoint.COMMIT
                self._after(self._message_us(place, one.base), lambda: acknowledged(place))

            self._occupy(partition, spent, prepared)

        def acknowledged(place: int) -> None:
            open_places.discard(place)
            if not open_places:
                self._finish(job)

        for place in sorted(one.partitions):
            self._after(self._message_us(one.base, place), lambda place=place: reach(place))  # type: ignore[misc]

    def _finish(self, job: Job) -> None:
        one = job.transaction
        restarts = not one.aborts and (
            any(map(self.scheduler.must_restart, job.stalls.values()))
            or (job.table is not None and job.table.out_of_order)
        )
        job.fails = restarts or one.aborts
        if restarts:
            self.measured.restarted += 1
            again = Job(one, job.client, job.submitted_us, restarts=job.restarts + 1)
            self._enter(again)
        else:
            self.measured.run_us.append(self._now - job.started_us)
            self._answer(job)
        for place in sorted(one.partitions):
            self._after(
                self._message_us(one.base, place),
                lambda place=place: self._release(job, self._partitions[place]),  # type: ignore[misc]
            )

    def _release(self, job: Job, partition: Partition) -> None:
        is_base = partition.number == job.transaction.base

        def free() -> None:
            self._note_stall(partition)
            partition.holder = None
            undone = self.scheduler.find_undone(job.stalls[partition.number]) if job.fails else []
            self.measured.rolled_back += len(undone)
            for done, other in reversed(job.beside.get(partition.number, [])):
                if done in undone:
                    partition.queue.appendleft(other)
                elif not done.is_before:
                    self._answer(other, speculated=True)

        held = self._now - job.granted_us[partition.number]
        self.measured.held_us[is_base] = self.measured.held_us.get(is_base, 0.0) + held
        self._occupy(partition, 0.0, free)

    # Speculation

    def _speculate(self, partition: Partition) -> None:
        """Run a transaction that the scheduler chooses, if the partition waits at a stall point."""
        job = partition.holder
        if job is None or partition.is_running or partition.waiting or self.scheduler.mode == "none":
            return
        if job.restarts >= _MAX_RESTARTS:
            return
        stall = job.stalls[partition.number]
        waiting = (one for one in partition.queue if len(one.transaction.partitions) == 1)
        jobs = list(itertools.islice(waiting, _MAX_EXAMINED))
        queue = [one.transaction for one in jobs]
        if not queue:
            return
        if self._counts:
            counts = len(queue), self.scheduler.count_eligible(stall, queue)
            self.measured.yields.append(counts)
            if not stall.is_before() and stall.point is not StallPoint.COMMIT:
                self.measured.compared.append(counts)
        before = self.scheduler.examined
        place = self.scheduler.choose(
            stall, queue, [self._run_us(one, estimated=True) for one in queue], self._stall_us(job, stall)
        )
        if place is None:
            return
        chosen = jobs[place]
        partition.queue.remove(chosen)
        examined = (self.scheduler.examined - before) * self._costs.examine_us[self.scheduler.mode]

        done = self.scheduler.note(stall, chosen.transaction)
        job.beside.setdefault(partition.number, []).append((done, chosen))

        def ran() -> None:
            if done.is_before:  # the end of the stalled transaction does not matter for it
                self._answer(chosen, speculated=True)

        self._occupy(partition, examined + self._run_us(chosen.transaction), ran)

    def _stall_us(self, job: Job, stall: Stall) -> float:
        """Return the duration of a stall that follows from the estimated path of its transaction."""
        one, costs = job.transaction, self._costs
        far = max(self._message_us(one.base, place) for place in one.partitions)
        if stall.point is StallPoint.COMMIT or stall.partition == one.base:
            return 2 * far
        spent = self._message_us(one.base, stall.partition)
        if stall.executed == 0:
            spent += far + costs.begin_us
        previous = one.base
        for step in one.estimate[stall.executed :]:
            place = one.base if step.partition < 0 else step.partition
            if place == stall.partition:
                break
            spent += costs.query_us
            if place not in (one.base, previous):
                spent += 2 * self._message_us(one.base, place)
            previous = place
        return spent
