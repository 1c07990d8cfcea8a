"""The consistency conditions of TPC-C (3.3.2.1 to 3.3.2.12), as queries that return violations."""

from __future__ import annotations

__all__ = ["CONDITIONS"]

CONDITIONS = {
    "1: a warehouse has the payments of its districts": """
        SELECT * FROM warehouses FULL JOIN (SELECT w_id, sum(ytd) AS total FROM districts GROUP BY ALL)
        USING (w_id) WHERE ytd IS DISTINCT FROM total""",
    "2: a district's next order follows its last one": """
        SELECT * FROM districts
        LEFT JOIN (SELECT w_id, d_id, max(o_id) AS last FROM orders GROUP BY ALL) USING (w_id, d_id)
        LEFT JOIN (SELECT w_id, d_id, max(o_id) AS last_new FROM new_orders GROUP BY ALL) USING (w_id, d_id)
        WHERE next_o_id - 1 IS DISTINCT FROM last OR last_new <> last""",
    "3: the new orders of a district have no gaps": """
        SELECT w_id, d_id FROM new_orders GROUP BY ALL HAVING max(o_id) - min(o_id) + 1 <> count(*)""",
    "4: a district has as many lines as its orders": """
        SELECT * FROM (SELECT w_id, d_id, sum(ol_cnt) AS lines FROM orders GROUP BY ALL)
        FULL JOIN (SELECT w_id, d_id, count(*) AS found FROM order_lines GROUP BY ALL) USING (w_id, d_id)
        WHERE lines IS DISTINCT FROM found""",
    "5: an order is new or has a carrier": """
        SELECT * FROM orders FULL JOIN (SELECT *, true AS is_new FROM new_orders) USING (w_id, d_id, o_id)
        WHERE c_id IS NULL OR (carrier_id IS NULL) IS DISTINCT FROM (is_new IS NOT NULL)""",
    "6: an order has its lines": """
        SELECT * FROM orders
        FULL JOIN (SELECT w_id, d_id, o_id, count(*) AS lines FROM order_lines GROUP BY ALL)
        USING (w_id, d_id, o_id) WHERE ol_cnt IS DISTINCT FROM lines""",
    "7: the lines of an order with a carrier are delivered": """
        SELECT * FROM orders JOIN order_lines USING (w_id, d_id, o_id)
        WHERE (delivery_d IS NULL) <> (carrier_id IS NULL)""",
    "8: a warehouse has the payments of its history": """
        SELECT * FROM warehouses FULL JOIN (SELECT w_id, sum(amount) AS paid FROM history GROUP BY ALL)
        USING (w_id) WHERE ytd IS DISTINCT FROM paid""",
    "9: a district has the payments of its history": """
        SELECT * FROM districts FULL JOIN (SELECT w_id, d_id, sum(amount) AS paid FROM history GROUP BY ALL)
        USING (w_id, d_id) WHERE ytd IS DISTINCT FROM paid""",
    "10: a customer owes the delivered orders less the payments": """
        WITH lines AS (
            SELECT o.w_id, o.d_id, o.c_id, sum(l.amount) AS amount
            FROM orders AS o JOIN order_lines AS l USING (w_id, d_id, o_id)
            WHERE l.delivery_d IS NOT NULL GROUP BY ALL
        )
        SELECT * FROM customers LEFT JOIN lines USING (w_id, d_id, c_id) LEFT JOIN (
            SELECT c_w_id, c_d_id, c_id, sum(amount) AS paid FROM history GROUP BY ALL
        ) AS h ON h.c_w_id = w_id AND h.c_d_id = d_id AND h.c_id = customers.c_id
        WHERE balance IS DISTINCT FROM coalesce(amount, 0) - paid""",
    "11: orders that are not new were delivered": """
        SELECT * FROM (SELECT w_id, d_id, count(*) AS orders FROM orders GROUP BY ALL)
        LEFT JOIN (SELECT w_id, d_id, count(*) AS new FROM new_orders GROUP BY ALL) USING (w_id, d_id)
        JOIN (
            SELECT w_id, d_id, count(*) - count(*) * 3 // 10 + sum(delivery_cnt) AS delivered
            FROM customers GROUP BY ALL
        ) USING (w_id, d_id) WHERE orders - coalesce(new, 0) <> delivered""",
    "12: balance and payments are the delivered orders": """
        WITH lines AS (
            SELECT o.w_id, o.d_id, o.c_id, sum(l.amount) AS amount
            FROM orders AS o JOIN order_lines AS l USING (w_id, d_id, o_id)
            WHERE l.delivery_d IS NOT NULL GROUP BY ALL
        )
        SELECT * FROM customers LEFT JOIN lines USING (w_id, d_id, c_id)
        WHERE balance + ytd_payment IS DISTINCT FROM coalesce(amount, 0)""",
}
"""The query of each condition. The key is the condition's number in the specification and what it demands.

The specification requires the eleventh condition only for the first rows, in which 2,100 of a district's
3,000 orders are delivered. Here the condition includes later deliveries.
"""
