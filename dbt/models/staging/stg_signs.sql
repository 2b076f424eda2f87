-- bardo_pipeline/retrieval/credit_rules.py, signs_of.
select golem_id, entry_id, kind, action_type, cycle, sign
from {{ valid_rows(source('home', 'derived_curation'), ['golem_id', 'revision', 'cycle', 'seq']) }}
where action_type is not null
qualify row_number() over (partition by golem_id, entry_id, cycle order by revision desc, seq desc) = 1
