"""Count votes exactly: each phone once, a leaderboard, and every 1000 votes the last contestant goes (Voter).

    python leaderboard.py

Each vote is one transaction of three steps (S-Store §1.1): validate it, maintain the leaderboard with the
trend of the last 100 votes, remove the contestant with the fewest votes. A second run goes on where the first
ended.
"""

from pathlib import Path

import penstock
from penstock import abort

CONTESTANTS, TREND, ROUND = 6, 100, 1000

show = penstock.database("show")
show.table("contestants", "id bigint, votes bigint NOT NULL, recent bigint NOT NULL", key="id")
show.table("votes", "phone bigint, contestant bigint NOT NULL", key="phone")
show.table("recent", "place bigint, contestant bigint NOT NULL", key="place")
show.table("board", "id bigint, total bigint NOT NULL, running bigint NOT NULL", key="id")


@show.procedure
def validate(e, contestants, votes):
    """Record a vote. A phone whose contestant was removed may vote again."""
    if e.contestant not in contestants:
        abort("no such contestant")
    earlier = votes.get(e.phone)
    if earlier is None:
        votes.insert(phone=e.phone, contestant=e.contestant)
    else:
        if earlier.contestant in contestants:
            abort("voted already")
        earlier.contestant = e.contestant


@show.procedure
def count(e, contestants, recent, board):
    """Maintain the totals, and the trend over a window of votes."""
    state = board[0]
    place = state.total % TREND
    oldest = recent.get(place)
    if oldest is None:
        recent.insert(place=place, contestant=e.contestant)
    else:
        if oldest.contestant in contestants:
            contestants[oldest.contestant].recent -= 1
        oldest.contestant = e.contestant
    contestants[e.contestant].votes += 1
    contestants[e.contestant].recent += 1
    state.total += 1


@show.procedure
def remove_lowest(e, contestants, board):
    """Remove the contestant with the fewest votes, once a round."""
    state = board[0]
    if state.total % ROUND != 0 or state.running == 1:
        return None
    lowest = -1
    fewest = 0
    for id in range(CONTESTANTS):
        contestant = contestants.get(id)
        if contestant is not None and (lowest < 0 or contestant.votes < fewest):
            lowest = id
            fewest = contestant.votes
    del contestants[lowest]
    state.running -= 1
    return lowest


@show.procedure(event="phone bigint, contestant bigint", returns="removed bigint")
def vote(e, contestants, votes, recent, board):
    """Run the three steps as one transaction."""
    if 0 not in board:
        board.insert(id=0, total=0, running=CONTESTANTS)
        for id in range(CONTESTANTS):
            contestants.insert(id=id, votes=0, recent=0)
    validate(e, contestants, votes)
    count(e, contestants, recent, board)
    return remove_lowest(e, contestants, board)


if __name__ == "__main__":
    with penstock.session() as spark:
        if not Path("leaderboard/votes").exists():
            cast = spark.range(20_000).selectExpr(
                "id AS number", "pmod(hash(id), 5000) AS phone", "pmod(hash(id, 'c'), 8) % 7 AS contestant"
            )
            cast.coalesce(1).write.parquet("leaderboard/votes")
        votes = spark.readStream.schema("number long, phone long, contestant long").parquet(
            "leaderboard/votes"
        )
        results = penstock.transactions(
            votes, vote, time="number", keep="number", state_location="leaderboard/state"
        )
        query = results.writeStream.format("parquet").option("path", "leaderboard/results")
        penstock.run(query.option("checkpointLocation", "leaderboard/checkpoint").trigger(availableNow=True))
        outcome = spark.read.parquet("leaderboard/results")
        for row in outcome.groupBy("rejected").count().orderBy("rejected").collect():
            print(f"{row['rejected'] or 'counted'}: {row['count']}")
        for row in outcome.where("removed IS NOT NULL").orderBy("number").collect():
            print(f"vote {row['number']} removed contestant {row['removed']}")
        board = penstock.read_state(
            spark, "leaderboard/state", checkpoint="leaderboard/checkpoint", table="contestants"
        )
        for row in board.orderBy("votes", ascending=False).collect():
            print(f"contestant {row['id']}: {row['votes']} votes, {row['recent']} of the last {TREND}")
