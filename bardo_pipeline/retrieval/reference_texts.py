"""Holds the 20 reference texts of the drift check. Data.

They resemble episodes, entries and questions of golems, so they show drift that matters. A changed text has no recorded
vector and is not compared until it has one. Source: MEM (20 reference documents).
"""

REFERENCE_TEXTS = (
    "In a volatile market with WETH/USDC on uniswap_v3, gas spiked and the golem re-centred the position.",
    "In a calm market with WETH/USDC on uniswap_v3, the position ran out of range and the golem held.",
    "In a falling trend with WETH/USDC, the price jumped and the golem left the market at a loss.",
    "In a rising trend with WBTC/USDC, liquidity moved and the golem opened a position that earned fees.",
    "Credits ran low; the golem put off collecting fees because gas was dear.",
    "Re-centring failed on inclusion: the slippage limit was reached.",
    "Re-centring pays when the anomaly score is above 0.9 and gas is usual.",
    "Re-centring harms in a calm market: holding would have been better by a third of a percent.",
    "The usual gas price on this chain lies between two and four cents a swap.",
    "Volume doubles in the hour before the price leaves the range.",
    "Never add liquidity to a pool whose depth fell by half within a day.",
    "When peers signal a threat, wait for two confirmations before acting.",
    "Its forecasts failed for fifty ticks: the model of the world no longer holds.",
    "What I suspect but cannot prove is that the pool's fees are worth less than the gas they cost.",
    "What should my successor find out about ranges that are twice as wide?",
    "Health factor of the lending position fell below 1.2; the debt was repaid in part.",
    "How expensive was gas while the market crashed?",
    "Which positions earned more than holding?",
    "The kill switch was thrown and every position was closed.",
    "The golem died of old age and left its playbook to an heir.",
)
