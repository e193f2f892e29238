"""Does the embedded user hear the support strategies that people hear?"""
