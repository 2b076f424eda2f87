select golem_id, sum(received.entry_count)::bigint as entry_count
from {{ source('home', 'log_life') }}
where kind = 'KnowledgeReceived' and received.source in ('succession', 'purchase') and quarantined is null
group by golem_id
