"""The network trained further by the attacker."""
