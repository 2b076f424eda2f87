select
    judged.golem_id, judged.judged.bundle_hash, judged.judged.passed,
    len(judged.judged.failed) as failed_expectations,
    published.published.bundle_hash is not null as is_published,
    published.published.entry_count
from {{ source('home', 'log_life') }} as judged
left join {{ source('home', 'log_life') }} as published
    on published.kind = 'BundlePublished' and published.golem_id = judged.golem_id
    and published.published.bundle_hash = judged.judged.bundle_hash
where judged.kind = 'BundleJudged'
{{ first_of('judged.golem_id', 'is_published desc, judged.recorded_at desc, judged.event_id') }}
