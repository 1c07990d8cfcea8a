"""The packaged OLTP benchmarks as stored procedures of PostgreSQL (PL/pgSQL, synchronous_commit=on)."""

from __future__ import annotations

from contextlib import ExitStack
from decimal import Decimal
from typing import Any

from benchmarks.oltp.peers import Peer, Rows, plain_rows, schema_texts
from benchmarks.transactions.transaction_peers import POSTGRES_ACCOUNT, start_postgres
from penstock.procedures.programs.oltp import OltpBenchmark
from penstock.procedures.programs.oltp.tpcc import DISTRICTS, RECENT_ORDERS
from penstock.procedures.programs.oltp.voter import MOST_VOTES, PHONES_OF_AREA
from penstock.procedures.programs.oltp.ycsb import FIELDS

__all__ = ["POSTGRES", "Postgres"]

_SMALL_BANK = """
CREATE FUNCTION transact(kind bigint, source bigint, target bigint, amount bigint, OUT result bigint)
LANGUAGE plpgsql AS $$
DECLARE mine bigint; saved bigint;
BEGIN
    PERFORM 1 FROM accounts WHERE id = source;
    IF NOT FOUND THEN RAISE EXCEPTION 'unknown customer'; END IF;
    SELECT balance INTO mine FROM checking WHERE id = source;
    IF kind IN (0, 1, 4, 5) THEN SELECT balance INTO saved FROM savings WHERE id = source; END IF;
    IF kind = 1 THEN result := mine + saved; RETURN; END IF;
    IF kind = 2 THEN
        UPDATE checking SET balance = balance + amount WHERE id = source RETURNING balance INTO result;
        RETURN;
    END IF;
    IF kind = 4 THEN
        IF saved < amount THEN RAISE EXCEPTION 'short'; END IF;
        UPDATE savings SET balance = balance - amount WHERE id = source RETURNING balance INTO result;
        RETURN;
    END IF;
    IF kind = 5 THEN
        UPDATE checking SET balance = balance - amount - CASE WHEN mine + saved < amount THEN 100 ELSE 0 END
        WHERE id = source RETURNING balance INTO result;
        RETURN;
    END IF;
    PERFORM 1 FROM accounts WHERE id = target;
    IF NOT FOUND THEN RAISE EXCEPTION 'unknown customer'; END IF;
    IF source = target THEN RAISE EXCEPTION 'one customer'; END IF;
    IF kind = 3 THEN
        IF mine < amount THEN RAISE EXCEPTION 'short'; END IF;
        UPDATE checking SET balance = balance - amount WHERE id = source RETURNING balance INTO result;
        UPDATE checking SET balance = balance + amount WHERE id = target;
        RETURN;
    END IF;
    UPDATE savings SET balance = 0 WHERE id = source;
    UPDATE checking SET balance = 0 WHERE id = source;
    UPDATE checking SET balance = balance + mine + saved WHERE id = target;
    result := 0;
END $$
"""

_INFO = " ".join(f"WHEN {number} THEN s.dist_{number:02}" for number in range(1, DISTRICTS + 1))
_TPCC = f"""
CREATE FUNCTION transact(
    kind bigint, w bigint, d bigint, cw bigint, cd bigint, c bigint, last_name text, paid bigint,
    num bigint, at bigint, items_ bigint[], supplies bigint[], quantities bigint[],
    OUT total numeric, OUT balance_ bigint, OUT count_ bigint
) LANGUAGE plpgsql AS $$
DECLARE
    o bigint; tax_w bigint; tax_d bigint; disc bigint; price_ bigint; info text; n bigint; sum_ bigint;
    w_name_ text; d_name_ text; local bigint; q bigint; owner bigint;
BEGIN
    IF kind IN (1, 2) AND c IS NULL THEN
        SELECT count(*) INTO n FROM customers WHERE w_id = cw AND d_id = cd AND last = last_name;
        SELECT c_id INTO c FROM customers WHERE w_id = cw AND d_id = cd AND last = last_name
        ORDER BY first COLLATE "C", c_id LIMIT 1 OFFSET (n + 1) / 2 - 1;
    END IF;
    IF kind = 0 THEN
        SELECT tax INTO tax_w FROM warehouses WHERE w_id = w;
        UPDATE districts SET next_o_id = next_o_id + 1 WHERE w_id = w AND d_id = d
        RETURNING next_o_id - 1, tax INTO o, tax_d;
        SELECT discount INTO disc FROM customers WHERE w_id = w AND d_id = d AND c_id = c;
        local := CASE WHEN w = ALL (supplies) THEN 1 ELSE 0 END;
        INSERT INTO orders VALUES (w, d, o, c, at, NULL, cardinality(items_), local);
        INSERT INTO new_orders VALUES (w, d, o);
        sum_ := 0;
        FOR place IN 1 .. cardinality(items_) LOOP
            SELECT price INTO price_ FROM items WHERE i_id = items_[place];
            IF NOT FOUND THEN RAISE EXCEPTION 'item number is not valid'; END IF;
            q := quantities[place];
            UPDATE stock AS s SET
                quantity = quantity - q + CASE WHEN quantity >= q + 10 THEN 0 ELSE 91 END,
                ytd = ytd + q, order_cnt = order_cnt + 1,
                remote_cnt = remote_cnt + CASE WHEN supplies[place] = w THEN 0 ELSE 1 END
            WHERE w_id = supplies[place] AND i_id = items_[place]
            RETURNING CASE d {_INFO} END INTO info;
            sum_ := sum_ + price_ * q;
            INSERT INTO order_lines VALUES
                (w, d, o, place, items_[place], supplies[place], NULL, q, price_ * q, info);
        END LOOP;
        total := sum_::numeric * (10000 - disc) * (10000 + tax_w + tax_d);
    ELSIF kind = 1 THEN
        UPDATE warehouses SET ytd = ytd + paid WHERE w_id = w RETURNING name INTO w_name_;
        UPDATE districts SET ytd = ytd + paid WHERE w_id = w AND d_id = d RETURNING name INTO d_name_;
        UPDATE customers SET
            balance = balance - paid, ytd_payment = ytd_payment + paid, payment_cnt = payment_cnt + 1
        WHERE w_id = cw AND d_id = cd AND c_id = c RETURNING balance, payment_cnt INTO balance_, n;
        INSERT INTO history VALUES (cw, cd, c, n, d, w, at, paid, w_name_, d_name_);
    ELSIF kind = 2 THEN
        SELECT balance INTO balance_ FROM customers WHERE w_id = cw AND d_id = cd AND c_id = c;
        SELECT o_id INTO o FROM orders WHERE w_id = cw AND d_id = cd AND c_id = c
        ORDER BY o_id DESC LIMIT 1;
        SELECT sum(quantity) INTO n FROM order_lines WHERE w_id = cw AND d_id = cd AND o_id = o;
    ELSIF kind = 3 THEN
        count_ := 0;
        FOR place IN 1 .. {DISTRICTS} LOOP
            SELECT o_id INTO o FROM new_orders WHERE w_id = w AND d_id = place ORDER BY o_id LIMIT 1;
            CONTINUE WHEN NOT FOUND;
            DELETE FROM new_orders WHERE w_id = w AND d_id = place AND o_id = o;
            UPDATE orders SET carrier_id = num WHERE w_id = w AND d_id = place AND o_id = o
            RETURNING c_id INTO owner;
            UPDATE order_lines SET delivery_d = at WHERE w_id = w AND d_id = place AND o_id = o;
            SELECT sum(amount) INTO sum_ FROM order_lines WHERE w_id = w AND d_id = place AND o_id = o;
            UPDATE customers SET balance = balance + sum_, delivery_cnt = delivery_cnt + 1
            WHERE w_id = w AND d_id = place AND c_id = owner;
            count_ := count_ + 1;
        END LOOP;
    ELSE
        SELECT next_o_id INTO o FROM districts WHERE w_id = w AND d_id = d;
        SELECT count(DISTINCT l.i_id) INTO count_ FROM order_lines AS l
        JOIN stock AS s ON s.w_id = w AND s.i_id = l.i_id
        WHERE l.w_id = w AND l.d_id = d AND l.o_id >= o - {RECENT_ORDERS} AND l.o_id < o
        AND s.quantity < num;
    END IF;
END $$
"""

_VOTER = f"""
CREATE FUNCTION transact(phone_ bigint, contestant_ bigint, OUT result bigint)
LANGUAGE plpgsql AS $$
DECLARE number_ bigint; state_ bigint;
BEGIN
    PERFORM 1 FROM contestants WHERE contestant = contestant_;
    IF NOT FOUND THEN RAISE EXCEPTION 'unknown contestant'; END IF;
    SELECT votes INTO number_ FROM callers WHERE phone = phone_;
    IF number_ = {MOST_VOTES} THEN RAISE EXCEPTION 'too many votes'; END IF;
    IF number_ IS NULL THEN
        number_ := 1;
        INSERT INTO callers VALUES (phone_, 1);
    ELSE
        UPDATE callers SET votes = votes + 1 WHERE phone = phone_ RETURNING votes INTO number_;
    END IF;
    SELECT state INTO state_ FROM areas WHERE area = phone_ / {PHONES_OF_AREA};
    state_ := coalesce(state_, 0);
    INSERT INTO votes VALUES (phone_, number_, contestant_, state_);
    UPDATE totals SET votes = votes + 1 WHERE contestant = contestant_ AND state = state_
    RETURNING votes INTO result;
    IF NOT FOUND THEN
        INSERT INTO totals VALUES (contestant_, state_, 1);
        result := 1;
    END IF;
END $$
"""

_TATP = """
CREATE FUNCTION transact(
    kind bigint, s bigint, number_ text, sort bigint, start_ bigint, until_ bigint, value_ bigint,
    numberx_ text, OUT location bigint, OUT text_ text, OUT data bigint
) LANGUAGE plpgsql AS $$
DECLARE active boolean; last_ bigint;
BEGIN
    IF kind = 0 THEN
        SELECT vlr_location, sub_nbr, byte2_10 INTO location, text_, data FROM subscribers WHERE s_id = s;
        IF NOT FOUND THEN RAISE EXCEPTION 'unknown key: subscribers'; END IF;
        RETURN;
    ELSIF kind = 2 THEN
        SELECT data3, data1 INTO text_, data FROM access_info WHERE s_id = s AND ai_type = sort;
        IF NOT FOUND THEN RAISE EXCEPTION 'unknown key: access_info'; END IF;
        RETURN;
    ELSIF kind = 1 THEN
        SELECT is_active INTO active FROM facilities WHERE s_id = s AND sf_type = sort;
        IF NOT FOUND THEN RAISE EXCEPTION 'unknown key: facilities'; END IF;
        IF NOT active THEN RAISE EXCEPTION 'not active'; END IF;
        SELECT max(start_time), count(*) INTO last_, data FROM forwarding
        WHERE s_id = s AND sf_type = sort AND start_time <= start_ AND end_time > until_;
        IF data = 0 THEN RAISE EXCEPTION 'not forwarded'; END IF;
        SELECT numberx INTO text_ FROM forwarding
        WHERE s_id = s AND sf_type = sort AND start_time = last_;
        RETURN;
    ELSIF kind = 3 THEN
        UPDATE subscribers SET bit_1 = value_ % 2 WHERE s_id = s;
        IF NOT FOUND THEN RAISE EXCEPTION 'unknown key: subscribers'; END IF;
        UPDATE facilities SET data_a = value_ % 256 WHERE s_id = s AND sf_type = sort;
        IF NOT FOUND THEN RAISE EXCEPTION 'unknown key: facilities'; END IF;
        RETURN;
    END IF;
    SELECT s_id INTO s FROM subscribers WHERE sub_nbr = number_;
    IF NOT FOUND THEN RAISE EXCEPTION 'unknown number'; END IF;
    IF kind = 4 THEN
        UPDATE subscribers SET vlr_location = value_ WHERE s_id = s;
        location := value_;
    ELSIF kind = 5 THEN
        PERFORM 1 FROM facilities WHERE s_id = s AND sf_type = sort;
        IF NOT FOUND THEN RAISE EXCEPTION 'no facility'; END IF;
        INSERT INTO forwarding VALUES (s, sort, start_, until_, numberx_) ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN RAISE EXCEPTION 'duplicate key: forwarding'; END IF;
    ELSE
        DELETE FROM forwarding WHERE s_id = s AND sf_type = sort AND start_time = start_;
        IF NOT FOUND THEN RAISE EXCEPTION 'unknown key: forwarding'; END IF;
    END IF;
END $$
"""

_YCSB = f"""
CREATE FUNCTION transact(
    kind bigint, key_ bigint, count_ bigint, value_ text, OUT field text, OUT records_ bigint
) LANGUAGE plpgsql AS $$
BEGIN
    IF kind = 2 THEN
        INSERT INTO records VALUES (key_{", value_" * FIELDS});
        field := value_;
        records_ := 1;
    ELSIF kind = 3 THEN
        SELECT max(id), count(*) INTO key_, records_
        FROM (SELECT id FROM records WHERE id >= key_ ORDER BY id LIMIT count_) AS scanned;
        SELECT field9 INTO field FROM records WHERE id = key_;
    ELSE
        SELECT field0 INTO field FROM records WHERE id = key_;
        IF NOT FOUND THEN RAISE EXCEPTION 'unknown key: records'; END IF;
        records_ := 1;
        IF kind <> 0 THEN UPDATE records SET field0 = value_ WHERE id = key_; END IF;
        IF kind = 1 THEN field := NULL; END IF;
    END IF;
END $$
"""

POSTGRES = {
    "small_bank": (_SMALL_BANK, 4, 1),
    "tatp": (_TATP, 8, 3),
    "tpcc": (_TPCC, 13, 3),
    "voter": (_VOTER, 2, 1),
    "ycsb": (_YCSB, 4, 2),
}
"""The stored procedure by the benchmark's name, and its numbers of parameters and results."""


class Postgres(Peer):
    """A PostgreSQL server in a temporary directory, and one client on its socket."""

    def __init__(self, benchmark: OltpBenchmark, scale: Any) -> None:
        import psycopg

        text, parameters, self._width = POSTGRES[benchmark.name]
        self._benchmark = benchmark
        self._stack = ExitStack()
        _, socket = start_postgres(self._stack, synchronous_commit="on")
        self._connection = psycopg.connect(
            host=str(socket), user=POSTGRES_ACCOUNT, dbname="postgres", autocommit=True, prepare_threshold=1
        )
        self._stack.callback(self._connection.close)
        self._cursor = self._connection.cursor()
        tables, indexes = schema_texts(benchmark)
        for statement in tables:
            self._cursor.execute(statement.encode())
        for name, rows in benchmark.tables(scale).items():
            with self._cursor.copy(f"COPY {name} FROM STDIN".encode()) as copy:
                for row in plain_rows(rows):
                    copy.write_row(row)
        for statement in [*indexes, text, "ANALYZE"]:
            self._cursor.execute(statement.encode())
        marks = ", ".join("%s" for _ in range(parameters))
        if benchmark.name == "tpcc":
            # Typed, or the server would not know which function is meant.
            kinds = ["bigint"] * 6 + ["text"] + ["bigint"] * 3 + ["bigint[]"] * 3
            marks = ", ".join(f"%s::{kind}" for kind in kinds)
        self._call = f"SELECT * FROM transact({marks})".encode()

    def run(self, events: Rows, group: int) -> Rows:
        import psycopg

        results: Rows = []
        for begin in range(0, len(events), group):
            with self._connection.transaction():
                for event in events[begin : begin + group]:
                    try:
                        with self._connection.transaction():
                            row = self._cursor.execute(self._call, event).fetchone()
                        assert row is not None
                        results.append(
                            (*(int(one) if isinstance(one, Decimal) else one for one in row), None)
                        )
                    except psycopg.errors.RaiseException as error:
                        results.append((*[None] * self._width, error.diag.message_primary))
        return results

    def tables(self) -> dict[str, Rows]:
        return {
            name: self._cursor.execute(
                f"SELECT * FROM {name} ORDER BY {', '.join(spec.key)}".encode()
            ).fetchall()
            for name, spec in self._benchmark.database.tables.items()
        }

    def close(self) -> None:
        self._stack.close()
