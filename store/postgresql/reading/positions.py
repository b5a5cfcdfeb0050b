"""Where in the log times lie: binary searches for all of them in one statement, as times never fall along ids."""

from __future__ import annotations


def positions_since(newest: str) -> str:
    """
    SQL for the positions of the times in ``$1``, in their order (``store.ports.Reader.positions_since``).

    Args:
        newest: SQL, over the log's row, for the last id that is looked at.
    """
    return f"""
        with recursive bounds as (
            select first_id, greatest(first_id, {newest} + 1) as next_id from log
        ),
        searched (number, time, low, high) as (
            select wanted.number, wanted.time, first_id, next_id
                from bounds, unnest($1::bigint[]) with ordinality as wanted (time, number)
            union all
            select number, searched.time,
                case when probe.time < searched.time then probe.id + 1 else low end,
                case when probe.time < searched.time then high else (low + high) / 2 end
                from searched left join lateral (
                    select id, time from message
                    where id >= (searched.low + searched.high) / 2 and id < searched.high order by id limit 1
                ) as probe on true
                where low < high
        )
        select low::bigint from searched where low >= high order by number
    """
