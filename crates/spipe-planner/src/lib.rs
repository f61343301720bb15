//! Searches for plans: ILP, dynamic program, greedy, exhaustive.
