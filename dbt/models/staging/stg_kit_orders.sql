-- Each order has its own bundle, so the bundle's hash names the order. One golem receives it, at its birth.
select
    ordered.kit_ordered.owner_id, ordered.kit_ordered.number, {{ utc('ordered.observed_at') }} as ordered_at,
    ordered.kit_ordered.bundle_hash, ordered.kit_ordered.entry_count, ordered.kit_ordered.why,
    came.golem_id, {{ utc('came.observed_at') }} as equipped_at
from {{ source('home', 'log_life') }} as ordered
left join {{ source('home', 'log_life') }} as came
    on came.kind = 'KnowledgeReceived' and came.received.content_hash = ordered.kit_ordered.bundle_hash
where ordered.kind = 'KitOrdered'
{{ first_of('ordered.kit_ordered.owner_id, ordered.kit_ordered.number', 'came.observed_at, came.event_id') }}
