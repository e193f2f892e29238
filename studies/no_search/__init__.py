"""Without a search, is one teacher near the best fixed difficulty on whatever learner and reward, and does training not collapse?"""
