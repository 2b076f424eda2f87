"""DeFi positions: Uniswap v3 liquidity and Aave loans."""
