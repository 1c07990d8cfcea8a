"""Voter with leaderboards, as S-Store §1.1 has it: a workflow of three procedures that are one transaction.

    python voter.py

Each vote is validated and counted. Every 1000 votes the contestant with the fewest is removed, and the votes
for that contestant are deleted, so that those who cast them may vote again. Each vote updates three
leaderboards: the top 3, the bottom 3, and the top 3 of the last 100 votes. A second run goes on where the
first ended.
"""

from pathlib import Path

import penstock
from penstock import abort

CONTESTANTS, TREND, ROUND, PLACES = 8, 100, 1000, 3
MOST = 1 << 60

show = penstock.database("voter")
show.table(
    "contestants",
    "id bigint, votes bigint NOT NULL, recent bigint NOT NULL, latest bigint",  # latest: who voted last
    key="id",
)
show.table("votes", "phone bigint, contestant bigint NOT NULL, before bigint", key="phone")
show.table("totals", "id bigint, votes bigint NOT NULL, running bigint NOT NULL", key="id")
show.table("leaderboard", "place bigint, top bigint, bottom bigint, trending bigint", key="place")
valid = show.stream("valid", "contestant bigint NOT NULL")
counted = show.stream("counted", "votes bigint NOT NULL")
trend = show.window("trend", "contestant bigint NOT NULL", size=TREND, slide=1)


@show.trigger(trend)
def recount(e, trend, contestants):
    """Count the votes of the window, each time that it slides."""
    for id in range(CONTESTANTS):
        contestant = contestants.get(id)
        if contestant is not None:
            contestant.recent = 0
    for vote in trend:
        voted = contestants.get(vote.contestant)
        if voted is not None:
            voted.recent += 1


@show.procedure
def rank(e, contestants, leaderboard):
    """Write the leaderboards; of equals the one with the lower number comes first."""
    best = MOST
    least = -MOST
    hottest = MOST
    for place in range(PLACES):
        top = -MOST
        bottom = MOST
        trending = -MOST
        for id in range(CONTESTANTS):
            contestant = contestants.get(id)
            if contestant is not None:
                if top < contestant.votes * CONTESTANTS - id < best:
                    top = contestant.votes * CONTESTANTS - id
                if least < contestant.votes * CONTESTANTS + id < bottom:
                    bottom = contestant.votes * CONTESTANTS + id
                if trending < contestant.recent * CONTESTANTS - id < hottest:
                    trending = contestant.recent * CONTESTANTS - id
        if place not in leaderboard:
            leaderboard.insert(place=place)
        row = leaderboard[place]
        if top == -MOST:
            row.top = None
            row.bottom = None
            row.trending = None
        else:
            row.top = -top % CONTESTANTS
            row.bottom = bottom % CONTESTANTS
            row.trending = -trending % CONTESTANTS
        best = top
        least = bottom
        hottest = trending


@show.procedure(event="phone bigint, contestant bigint")
def validate(e, contestants, votes, totals, valid):
    """Record a vote for a contestant who runs, by a phone that has none."""
    if 0 not in totals:
        totals.insert(id=0, votes=0, running=CONTESTANTS)
        for id in range(CONTESTANTS):
            contestants.insert(id=id, votes=0, recent=0)
    contestant = contestants.get(e.contestant)
    if contestant is None:
        abort("no such contestant")
    if e.phone in votes:
        abort("voted already")
    votes.insert(phone=e.phone, contestant=e.contestant, before=contestant.latest)
    contestant.latest = e.phone
    valid.emit(contestant=e.contestant)


@show.procedure(event=valid)
def count(e, contestants, totals, trend, leaderboard, counted):
    """Maintain the totals, the window and the leaderboards."""
    contestants[e.contestant].votes += 1
    totals[0].votes += 1
    trend.insert(contestant=e.contestant)
    rank(e, contestants, leaderboard)
    counted.emit(votes=totals[0].votes)


@show.procedure(event=counted, returns="removed bigint")
def remove_lowest(e, contestants, votes, totals, leaderboard):
    """Remove the contestant with the fewest votes, and delete these, once a round."""
    if e.votes % ROUND != 0 or totals[0].running == 1:
        return None
    lowest = leaderboard[0].bottom
    phone = contestants[lowest].latest
    for _ in range(contestants[lowest].votes):
        before = votes[phone].before
        del votes[phone]
        phone = before
    del contestants[lowest]
    totals[0].running -= 1
    rank(e, contestants, leaderboard)
    return lowest


vote = show.workflow("vote", show.nested(validate, count, remove_lowest))


if __name__ == "__main__":
    with penstock.session() as spark:
        if not Path("voter/votes").exists():
            cast = spark.range(30_000).selectExpr(
                "id AS number",
                "pmod(hash(id), 9000) * 1L AS phone",
                "pmod(hash(id, 'c'), 11) % 9 * 1L AS contestant",
            )
            cast.coalesce(1).write.parquet("voter/votes")
        votes = spark.readStream.schema("number long, phone long, contestant long").parquet("voter/votes")
        results = penstock.transactions(
            votes, vote, time="number", keep="number", state_location="voter/state"
        )
        query = results.writeStream.format("parquet").option("path", "voter/results")
        penstock.run(query.option("checkpointLocation", "voter/checkpoint").trigger(availableNow=True))
        outcome = spark.read.parquet("voter/results")
        for row in outcome.groupBy("rejected").count().orderBy("rejected").collect():
            print(f"{row['rejected'] or 'counted'}: {row['count']}")
        for row in outcome.where("removed IS NOT NULL").orderBy("number").collect():
            print(f"vote {row['number']} removed contestant {row['removed']}")
        board = penstock.read_state(spark, "voter/state", checkpoint="voter/checkpoint", table="leaderboard")
        for row in board.orderBy("place").collect():
            print(f"place {row.place + 1}: top {row.top}, bottom {row.bottom}, trending {row.trending}")
