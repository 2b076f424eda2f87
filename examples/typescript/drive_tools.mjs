// An agent drives the thirteen memory tools with the TypeScript client of the Model Context Protocol.
//
//     npm ci
//     node drive_tools.mjs stdio bardo serve --mcp-stdio --owner OWNER --golem GOLEM
//     node drive_tools.mjs http URL
//
// `stdio` starts the server by the command that follows; BARDO_MEMORY_ENABLED=true opens its tools. `http` uses a
// running server, the token in BARDO_TOKEN and the golem in BARDO_GOLEM. The program checks each answer, prints a line
// for each tool, and ends with exit code 1 at the first answer that differs from the expected one. Its ids are fixed:
// run it once for a golem.

import assert from "node:assert/strict";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const [door, ...words] = process.argv.slice(2);
const strategy = "late swaps";
const insight = "Swap late in the day.";
const reflection = "Swaps after 22:00 UTC cost half the gas.";
const episodes = [reflection, "A pool with a fee of 0.05 % filled the order.", "Two hops slipped by 12 basis points."];
const executions = [1, 2, 3, 4, 5].map((number) => `run-${number}`);
const predicted = 5.0;
const realized = -2.0;

function transport() {
  if (door === "stdio" && words.length > 0) {
    const [command, ...args] = words;
    return new StdioClientTransport({ command, args, env: process.env });
  }
  if (door === "http" && words.length === 1) {
    const headers = { Authorization: `Bearer ${process.env.BARDO_TOKEN}`, "Bardo-Golem": process.env.BARDO_GOLEM };
    return new StreamableHTTPClientTransport(new URL("/mcp", words[0]), { requestInit: { headers } });
  }
  throw new Error("usage: node drive_tools.mjs stdio COMMAND [ARGUMENT...] | node drive_tools.mjs http URL");
}

function assertOneMore({ before, expected, after }) {
  assert.deepEqual([expected, after], [before + 1, before + 1], "the log has one row more");
}

// Each step calls a tool with the arguments of `calls` and checks the answers; `answers` has those of earlier steps.
const steps = [
  {
    tool: "memory_store_episode",
    calls: () => episodes.map((text) => ({ tool: "swap", outcome: { filled: true }, reflection: text, chain: "base" })),
    check: (stored) => stored.forEach(({ counts }) => assertOneMore(counts)),
  },
  {
    tool: "memory_search",
    calls: () => [{ query: "what do swaps after 22:00 cost in gas?", store: "episodes", limit: 5 }],
    check: ([found], answers) => {
      assert.equal(found.results[0].content, reflection);
      assert.ok(found.results.some(({ id }) => id === answers.memory_store_episode[0].episode_id), "its id is found");
    },
  },
  {
    tool: "memory_manage_insight",
    calls: () => [{ operation: "ADD", content: insight, category: "gas_timing" }],
    check: ([added]) => {
      assertOneMore(added.counts);
      assert.deepEqual([added.confidence_before, added.confidence_after], [0, 0.6]);
    },
  },
  {
    tool: "memory_get_insights",
    calls: () => [{ category: "gas_timing", limit: 1000 }],
    check: ([{ insights }], answers) => {
      const added = insights.find(({ id }) => id === answers.memory_manage_insight[0].insight_id);
      assert.equal(added?.content, insight);
    },
  },
  {
    tool: "memory_consolidate",
    calls: () => [{ min_cluster_size: 3 }],
    check: ([done]) => {
      assertOneMore(done.counts);
      assert.ok(done.episodes_processed >= 3 && done.clusters_found >= 1, "the three episodes are a cluster");
    },
  },
  {
    tool: "memory_store_strategy",
    calls: () => [
      {
        strategy_name: strategy,
        parameters: { hour: 22 },
        description: "swap after 22:00",
        chains: ["base"],
        token_pairs: ["WETH/USDC"],
      },
    ],
    check: ([stored]) => {
      assertOneMore(stored.counts);
      assert.deepEqual([stored.version, stored.is_new], [1, true]);
    },
  },
  {
    tool: "memory_retrieve_strategies",
    calls: () => [{ strategy_name: strategy }],
    check: ([{ strategies }]) => assert.deepEqual(strategies.map((one) => one.parameters), [{ hour: 22 }]),
  },
  {
    tool: "memory_record_execution",
    calls: () =>
      executions.map((id) => ({
        execution_id: id,
        strategy_name: strategy,
        action_type: "SWAP",
        portfolio_snapshot: { usd: 900 },
        market_conditions: { regime: "volatile", gas_gwei: 20 },
        decision_params: { hour: 22 },
        predicted_outcome: { pnl_usd: predicted },
      })),
    check: (recorded) =>
      recorded.forEach(({ counts, strategy_version, predicted_pnl_usd }) => {
        assertOneMore(counts);
        assert.deepEqual([strategy_version, predicted_pnl_usd], [1, predicted]);
      }),
  },
  {
    tool: "memory_record_outcome",
    calls: () => executions.map((id) => ({ execution_id: id, realized_pnl: realized, gas_used_usd: 0.1 })),
    check: (recorded) =>
      recorded.forEach(({ counts, prediction_error, reflection_requested }) => {
        assertOneMore(counts);
        assert.deepEqual([prediction_error, reflection_requested], [(predicted - realized) / predicted, true]);
      }),
  },
  {
    tool: "memory_compare_prediction",
    calls: () => [{ strategy_name: strategy, period: "7d" }],
    check: ([compared]) => {
      assert.deepEqual([compared.sample_count, compared.bias], [5, (realized - predicted) / predicted]);
      assert.deepEqual([...compared.reflections_pending].sort(), executions);
    },
  },
  {
    tool: "memory_get_failure_patterns",
    calls: () => [{ strategy_name: strategy }],
    check: ([{ clusters, failure_count }]) => {
      assert.equal(failure_count, 5);
      assert.deepEqual([clusters[0].execution_count, clusters[0].avg_pnl], [5, realized]);
    },
  },
  {
    tool: "memory_export_grimoire",
    calls: () => [{ min_confidence: 0.0 }],
    check: ([exported]) => {
      assert.ok(exported.episodes_exported >= episodes.length && exported.insights_exported >= 1);
      assert.ok(exported.strategies_exported >= 1);
    },
  },
  {
    tool: "memory_import_grimoire",
    calls: ({ memory_export_grimoire: [{ path }] }) => [{ path, dry_run: true }, { path, import_confidence: 0.4 }],
    check: ([preview, imported], { memory_export_grimoire: [exported] }) => {
      assert.ok(preview.counts.every(({ before, after }) => before === after), "a dry run records nothing");
      assertOneMore(imported.counts.find(({ counted }) => counted.startsWith("ArchiveImported")));
      assert.equal(imported.episodes_imported, exported.episodes_exported);
      assert.deepEqual([imported.confidence_override, imported.dream_queued], [0.4, true]);
    },
  },
];

const client = new Client({ name: "drive-tools", version: "1.0.0" });
await client.connect(transport());
try {
  const listed = (await client.listTools()).tools.map(({ name }) => name);
  const known = steps.map(({ tool }) => tool);
  assert.deepEqual(listed.toSorted(), known.toSorted(), "the server lists these thirteen tools");
  const answers = {};
  for (const { tool, calls, check } of steps) {
    answers[tool] = [];
    for (const given of calls(answers)) {
      const result = await client.callTool({ name: tool, arguments: given });
      assert.ok(!result.isError, `${tool}: ${JSON.stringify(result.structuredContent)}`);
      assert.ok(result.structuredContent.freshness, `${tool} states its freshness`);
      answers[tool].push(result.structuredContent);
    }
    check(answers[tool], answers);
    console.log(`${tool}: ${answers[tool].length} answered`);
  }
  const refused = await client.callTool({ name: "memory_search", arguments: { query: "gas", limit: 0 } });
  assert.ok(refused.isError, "a limit of 0 is refused");
  assert.match(refused.structuredContent.message, /memory_search.*limit/s);
  assert.match(refused.structuredContent.cure, /^give a valid limit/);
  console.log(`refused: ${refused.structuredContent.message}`);
} finally {
  await client.close();
}
